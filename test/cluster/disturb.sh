#!/bin/bash
# disturb.sh ROUND: what a cluster with Myelin must bear, by the number of the round: an upgrade of all agents to
# another configuration, an agent killed, no operators for a while. conformance calls it, again and again, while the
# suite runs.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/installed.sh"
round=$1
case $((round % 3)) in
  0)
    tracking=(auto always)
    echo "disturb: upgrade to flowTracking=${tracking[$((round / 3 % 2))]}"
    chart upgrade --set "myelin.flowTracking=${tracking[$((round / 3 % 2))]}"
    ;;
  1)
    node=${nodes[$((round / 3 % ${#nodes[@]}))]}
    echo "disturb: kill -9 of the agent on $node"
    cluster in-node "$node" sh -c 'kill -9 $(pgrep -f "^/myelin agent ")'
    cluster kubectl -n kube-system rollout status ds/myelin --timeout=60s > /dev/null
    ;;
  2)
    echo "disturb: no operators"
    cluster kubectl -n kube-system scale deploy/myelin-operator --replicas=0 > /dev/null
    sleep 20
    cluster kubectl -n kube-system scale deploy/myelin-operator --replicas=2 > /dev/null
    ;;
esac
