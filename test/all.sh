#!/bin/bash
# all.sh: everything there is. Kubernetes is built with what time the tests leave: they wait for traffic more than for a
# processor.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
log=$(mktemp) code=0
chrt --idle 0 test/cluster/build.sh e2e > "$log" 2>&1 &
build=$!
trap 'kill "$build" 2> /dev/null || :; rm -f "$log"' EXIT
go vet ./... || code=$?
make --no-print-directory generate-check || code=$?
make --no-print-directory fuzz FUZZ_SECONDS=3 || code=$?
make --no-print-directory test-ui || code=$?
go run ./test/rings style packet lab kube unit vm || code=$?
wait "$build" || { cat "$log" >&2; exit 1; }
test/cluster/run.sh short || code=$?
exit $code
