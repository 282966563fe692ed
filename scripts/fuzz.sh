#!/bin/bash
# fuzz.sh [SECONDS]: runs every fuzz target of the tree for that long (10), one after the other. A failing input stays
# in the package's testdata.
#
# Only packages of this module are instrumented: their coverage guides the fuzzer, and their dependencies come from the
# build cache. go test -fuzz instruments dependencies as well and compiles all of them once more.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
seconds=${1:-10} targets=0 built='' failed=()
cache=$(go env GOCACHE)/fuzz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# build FOLDER: makes the test binary of the folder's package, unless it is the last one built.
build() {
  [ "$built" != "$1" ] || return 0
  go test -c -vet=off -ldflags '-s -w' -gcflags 'myelin/...=-d=libfuzzer' -o "$work/fuzz.test" "./$1"
  built=$1
}
# fuzz FOLDER TARGET SECONDS: the output goes to $work/log, too.
fuzz() {
  (cd "$1" && "$work/fuzz.test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$3s" \
    -test.fuzzcachedir "$cache/myelin/$1") 2>&1 | tee "$work/log"
}
# expired: the run failed only because its time was over. The coordinator of Go before 1.27 may return the error of its
# context's deadline (https://go.dev/issue/75804). An input that fails is written and named in any case.
expired() {
  grep -qx ' *context deadline exceeded' "$work/log" && ! grep -qE 'Failing input written|panic:' "$work/log"
}

# begun: the seeds have been run, and changed inputs after them.
begun() { grep -q 'now fuzzing' "$work/log"; }
# run FOLDER TARGET: a target whose processes, or seeds, take longer than its time gets ten times as much.
run() {
  local time=$seconds
  fuzz "$1" "$2" "$time" || expired || return 1
  if ! begun; then
    time=$((10 * seconds))
    echo "$2 has run none but its seeds in $seconds s: once more, for $time s"
  elif ! expired; then
    return 0
  else
    echo "once more: https://go.dev/issue/75804"
  fi
  fuzz "$1" "$2" "$time"
}

while IFS=: read -r file target; do
  folder=$(dirname "$file")
  echo "── $target in $folder"
  targets=$((targets + 1))
  build "$folder" && run "$folder" "$target" || failed+=("$target")
done < <(git ls-files --cached --others --exclude-standard '*_test.go' | xargs grep -oE '^func Fuzz[A-Za-z0-9_]+' \
  | sed 's/func //' | sort)
[ $targets -gt 0 ] || { echo "no fuzz targets"; exit 1; }
[ ${#failed[@]} = 0 ] || { echo "fuzz targets that failed: ${failed[*]}"; exit 1; }
echo "$targets fuzz targets found nothing"
