#!/bin/bash
# run.sh short|all|disturbed: a cluster of its own, upstream's specs, and nothing left.
#   short       Myelin installed, upgraded and uninstalled as users do it; this folder's tests; the specs that say most
#               in five minutes
#   all         this folder's tests, and every spec of the network; writes docs/conformance.md
#   disturbed   every spec, on Myelin as Helm installs it, while agents are upgraded and killed and operators are away
set -euo pipefail
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
mode=${1-}
case $mode in
  short) flags=(-short) ;;
  all) flags=(-write docs/conformance.md) ;;
  disturbed) flags=(-disturb "$here/disturb.sh") ;;
  *) sed -n 's/^# \{0,1\}//p' "$0" | sed 1d >&2; exit 2 ;;
esac
"$here/build.sh" e2e > /dev/null
code=0
[ "$mode" != short ] || env -u MYELIN_CLUSTER "$here/install.sh" || code=$?
export MYELIN_CLUSTER=${MYELIN_CLUSTER:-c$((BASHPID % 10000000))}
trap '"$here/cluster.sh" down' EXIT
if [ "$mode" = disturbed ]; then
  "$here/cluster.sh" up bare
  . "$here/installed.sh"
  bring
  chart install
  settled
else
  "$here/cluster.sh" up
  go run ./test/rings cluster || code=$?
fi
go run ./test/cluster/conformance "${flags[@]}" || code=$?
exit $code
