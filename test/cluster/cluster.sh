#!/bin/bash
# cluster.sh: a real Kubernetes cluster of three nodes on this machine, with Myelin for a network and no kube-proxy.
#   up [bare]                 makes it, of what build.sh built and the programs in $MYELIN_BIN; ends when nodes and
#                             CoreDNS are ready; bare: nodes
#                             without agent, plugin and CoreDNS, to be installed by a test
#   dns                       CoreDNS, and waits for it
#   import FILE               an image's archive, into all nodes
#   ready                     how many seconds it took from the agents' start until the last node was Ready
#   down                      ends and removes all of it, also of one that came up in part
#   kubectl ARG...            as its administrator
#   kubeconfig                the administrator's file, for use where the API server is (in-control)
#   in-node NODE CMD...       in a node's namespaces
#   in-control CMD...         where the API server is, outside of all nodes
#   suite FLAG...             upstream's test suite on it, by ginkgo
#   agent start|stop|kill NODE
#   server stop|start         the API server stops to answer, and starts again
#   reboot NODE               all of the node's processes, its network and /run are lost
#   readdress NODE HOST       the node's addresses become 172.30.0.HOST and fd30::HOST, under its pods
#   rejoin NODE               the Node object is deleted, and made anew by kubelet, with other podCIDRs; what runs on
#                             the node goes on
# $MYELIN_CLUSTER is its name (kube), a word of at most 8 letters.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/place.sh"
. "$here/control.sh"
. "$here/kubelet.sh"
myelin=$(realpath "${MYELIN_BIN:-$here/../../bin}")
PATH=$myelin:$PATH
[[ $name =~ ^[a-z][a-z0-9]{0,7}$ ]] || die "MYELIN_CLUSTER=$name: one to eight letters and digits"
export MYELIN_CLUSTER=$name

has_prefixes() { [ -n "$(kubectl get node "$1" -o 'jsonpath={.spec.podCIDRs}')" ]; } # NODE

zone() { kubectl label node "$1" "topology.kubernetes.io/zone=zone-$1" > /dev/null; } # NODE: has one of its own

dns() {
  kubectl apply -f "$here/coredns.yaml" > /dev/null
  kubectl -n kube-system rollout status deploy/coredns --timeout=90s > /dev/null
}

import() { # FILE
  local node
  for node in "${nodes[@]}"; do (in_node "$node" "$bin/ctr" -n k8s.io images import "$1") >> \
    "$logs/images-$node.log" 2>&1; done
}

up() { # [bare]
  local begin=$SECONDS start node job jobs_up bare=${1-}
  [ ! -e "$home" ] || die "$name is up, or down has not been run: $home"
  mkdir -p "$logs" "$pids"
  keys
  network
  control_plane &
  jobs_up=($!)
  for node in "${nodes[@]}"; do (bash "$here/node.sh" "$node" && runtime "$node" && { [ -n "$bare" ] \
    || install_agent "$node"; }) & jobs_up+=($!); done
  for job in "${jobs_up[@]}"; do wait "$job" || die "up failed; logs: $logs"; done
  [ -n "$bare" ] || kubectl apply -f "$here/../../kube/role.yaml" -f "$here/rights.yaml" \
    -f "$here/../../kube/secrets-role.yaml" > /dev/null
  for node in "${nodes[@]}"; do kubelet "$node"; done
  for node in "${nodes[@]}"; do eventually 60 "podCIDRs of $node" has_prefixes "$node"; done
  pod_routes
  for node in "${nodes[@]}"; do zone "$node"; done
  [ -z "$bare" ] || { echo "cluster: $name up in $((SECONDS - begin)) s, without a network" >&2; return; }
  start=$(date +%s.%N)
  for node in "${nodes[@]}"; do agent start "$node"; done
  kubectl wait node --all --for=condition=Ready --timeout=60s > /dev/null
  # seconds from the agents' start until the last node is Ready
  awk "BEGIN { print $(date +%s.%N) - $start }" > "$home/ready"
  dns
  echo "cluster: $name up in $((SECONDS - begin)) s" >&2
}

# stop_node NODE: its first process ends, and with it all others. Empty groups are removed.
stop_node() {
  local group what
  finish "node-$1" KILL
  for what in containerd kubelet agent; do finish "$what-$1" KILL; done
  [ -e "$home/$1/groups" ] || return 0
  while read -r group; do
    eventually 10 "end of what runs in $group" sh -c "! grep -q . \$(find '$group' -name cgroup.procs) /dev/null"
    find "$group" -depth -type d -exec rmdir {} +
  done < "$home/$1/groups"
  rm "$home/$1/groups"
}

down() {
  local node what
  for node in "${nodes[@]}"; do stop_node "$node" & done
  for what in kube-scheduler kube-controller-manager kube-apiserver etcd; do finish "$what" KILL & done
  wait
  for what in "${nodes[@]}" cp lan; do [ ! -e "/run/netns/$name-$what" ] || ip netns del "$name-$what"; done
  rm -rf "$home"
}

reboot() { # NODE
  stop_node "$1"
  ip netns del "$name-$1"
  ip -n "$name-lan" link del "$1" 2> /dev/null || true
  join_node "$1"
  bash "$here/node.sh" "$1"
  runtime "$1"
  kubelet "$1"
  agent start "$1"
}

server_hears() { # stop|start
  case $1 in
    stop) kill -STOP "$(cat "$pids/kube-apiserver")" ;;
    start) kill -CONT "$(cat "$pids/kube-apiserver")" ;;
    *) die "server stop|start" ;;
  esac
}

# again NODE: kubelet anew, and what follows from its Node object.
again() {
  kubelet "$1"
  eventually 60 "podCIDRs of $1" has_prefixes "$1"
  zone "$1"
  kubectl wait node "$1" --for=condition=Ready --timeout=60s > /dev/null
  pod_routes
}

readdress() { # NODE HOST
  finish "kubelet-$1"
  ip -n "$name-$1" addr flush dev eth0 scope global
  echo "$2" > "$home/$1/host"
  addresses "$1" "$2"
  to_the_world "$1"
  again "$1"
}

rejoin() { # NODE
  finish "kubelet-$1"
  kubectl delete node "$1" > /dev/null
  again "$1"
}

suite() {
  local reports
  reports=$home/reports
  mkdir -p "$reports"
  in_control env "PATH=$bin:$PATH" "$bin/ginkgo" "$@" "$bin/e2e.test" -- --provider=skeleton \
    --kubeconfig="$pki/admin.kubeconfig" \
    --kubectl-path="$bin/kubectl" --num-nodes=${#nodes[@]} --report-dir="$reports"
}

case ${1-} in
  up) up "${2-}" ;;
  dns) dns ;;
  import) import "$2" ;;
  down) down ;;
  ready) cat "$home/ready" ;;
  reboot) reboot "$2" ;;
  server) server_hears "$2" ;;
  readdress) readdress "$2" "$3" ;;
  rejoin) rejoin "$2" ;;
  agent) agent "$2" "$3" ;;
  kubectl) shift; administer "$@" ;;
  kubeconfig) echo "$pki/admin.kubeconfig" ;;
  in-node) shift; in_node "$@" ;;
  suite) shift; suite "$@" ;;
  in-control) shift; in_control "$@" ;;
  *) sed -n 's/^# \{0,1\}//p' "$0" | sed 1d >&2; exit 2 ;;
esac
