#!/bin/bash
# run.sh short|all: a cluster of its own, this folder's tests, upstream's specs, and nothing left.
#   short   Myelin installed, upgraded and uninstalled as users do it; the specs that say most in ten minutes
#   all     every spec of the network; writes docs/conformance.md
set -euo pipefail
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
case ${1-} in
  short) flags=(-short) ;;
  all) flags=(-write docs/conformance.md) ;;
  *) sed -n 's/^# \{0,1\}//p' "$0" | sed 1d >&2; exit 2 ;;
esac
"$here/build.sh" e2e > /dev/null
code=0
[ "$1" != short ] || env -u MYELIN_CLUSTER "$here/install.sh" || code=$?
export MYELIN_CLUSTER=${MYELIN_CLUSTER:-c$((BASHPID % 10000000))}
trap '"$here/cluster.sh" down' EXIT
"$here/cluster.sh" up
go run ./test/rings cluster || code=$?
go run ./test/cluster/conformance "${flags[@]}" || code=$?
exit $code
