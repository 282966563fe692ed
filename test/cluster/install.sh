#!/bin/bash
# install.sh: Myelin as users install it, on a cluster of its own: image, Helm and the chart, two operators, the
# cluster's network tested from within, also without operators and during an upgrade, and nodes that are what they were
# before when Myelin has gone; then the same without Helm. What is left is printed, and an error.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
export MYELIN_CLUSTER=${MYELIN_CLUSTER:-i$((BASHPID % 10000000))}
. "$here/installed.sh"
. "$here/hubble.sh"
. "$here/encryption.sh"
work=$(mktemp -d)
trap '"$here/cluster.sh" down; rm -rf "$work"' EXIT
step() { echo "── $*"; }

# state NODE: what a network leaves on a node.
state() {
  cluster in-node "$1" sh -c '
    ip -o link | sed "s/qlen.*link/link/; s/^[0-9]*: //"
    for f in -4 -6; do ip $f rule; ip $f route show table all
      ip $f -o addr | sed "s/^[0-9]*//"; ip $f neigh | grep -E "PERMANENT|NOARP|proto"; done
    for d in /sys/class/net/*; do for at in ingress egress; do
      tc filter show dev ${d##*/} $at 2> /dev/null | sed "s,^,${d##*/} $at ,"; done; done
    (cd /proc/sys/net && grep -r . ipv4/conf ipv6/conf ipv4/ip_forward core 2> /dev/null |
      grep -vE "random|stable_secret")
    find /run/myelin /sys/fs/bpf /etc/cni/net.d /opt/cni/bin 2> /dev/null | grep -vE "\.debug$|/cgroup2/."' | sort
}

objects() { # of Myelin, in the API server
  local kinds=daemonsets,deployments,jobs,pods,configmaps,secrets,serviceaccounts,leases
  kinds+=,roles,rolebindings,clusterroles,clusterrolebindings
  cluster kubectl get "$kinds" -A -o name | { grep -E 'myelin|hubble' || true; }
}

# nothing_left: each node's state is that of before, and the API server has definitions of kinds at most.
nothing_left() {
  local node try left=0
  for node in "${nodes[@]}"; do
    state "$node" > "$work/after.$node"
    diff "$work/before.$node" "$work/after.$node" || { echo "── left on $node: the lines above" >&2; left=1; }
  done
  # pods of what cleaned the nodes take a moment
  for ((try = 0; try < 40; try++)); do [ -n "$(objects)" ] || break; sleep 0.5; done
  ! objects | grep . || { echo "── left in the API server: the objects above" >&2; left=1; }
  [ $left = 0 ] || exit 1
  step "nothing is left, on ${nodes[*]} and in the API server"
}

# its pods are of the network that goes
without_dns() { cluster kubectl -n kube-system delete deploy/coredns --grace-period=1 \
  --cascade=foreground > /dev/null; }
realised() { [ "$(cluster kubectl get ciliumnetworkpolicy everybody -o 'jsonpath={.status.realised.nodes}')" = \
  ${#nodes[@]} ]; }

step "three nodes without a network"
cluster up bare
step image
bring
for node in "${nodes[@]}"; do state "$node" > "$work/before.$node"; done
step "helm install"
chart install
settled
cluster kubectl apply -f - << 'YAML'
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: everybody, namespace: default}
spec: {endpointSelector: {matchLabels: {app: absent}}, ingress: [{}]}
YAML
eventually 60 "the policy on all nodes" realised
step "the network, from within, while there is no operator"
cluster kubectl -n kube-system scale deploy/myelin-operator --replicas=0
inside "$myelin" connectivity test
step "helm upgrade: another configuration and Hubble, node by node, while the network is tested"
chart upgrade --set myelin.flowTracking=always "${hubble_values[@]}" &
upgrade=$!
inside "$myelin" connectivity test --test '^(pod|service)'
wait "$upgrade"
settled
inside "$myelin" connectivity test --test '^(pod|service)'
step "Hubble: relay, web page, certificates, metrics"
hubble_test
step "helm upgrade: WireGuard, and what travels between nodes"
encryption_test
step "helm uninstall"
cluster kubectl delete ciliumnetworkpolicy everybody > /dev/null
without_dns
helm uninstall myelin --timeout 90s
nothing_left
step "myelin install, in a namespace of its own"
cluster kubectl create namespace myelin-system > /dev/null
inside "$myelin" install --namespace myelin-system --apply --wait --timeout 90s --values "$values"
settled myelin-system
inside "$myelin" connectivity test --agent-namespace myelin-system --test '^pod'
step "myelin uninstall"
without_dns
inside "$myelin" uninstall --namespace myelin-system --timeout 90s
nothing_left
