#!/bin/bash
# install.sh: Myelin as users install it, on a cluster of its own: image and chart's objects, two operators, the cluster's network tested from within, also
# without operators and during an upgrade, and a node that is what it was before when Myelin has gone. What is left is printed, and an error.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
export MYELIN_CLUSTER=${MYELIN_CLUSTER:-i$((BASHPID % 10000000))}
. "$here/place.sh"
myelin=$(realpath "${MYELIN_BIN:-bin}")/myelin
work=$(mktemp -d)
trap '"$here/cluster.sh" down; rm -rf "$work"' EXIT
step() { echo "── $*"; }
cluster() { "$here/cluster.sh" "$@"; }
inside() { cluster in-control env "KUBECONFIG=$pki/admin.kubeconfig" "$myelin" "$@"; } # ARG... of myelin, as the administrator
# This machine has no CAP_SYS_RESOURCE to give, which only kernels before 5.11 need.
values=(--set kubeProxyReplacement=true --set ipv6.enabled=true --set autoDirectNodeRoutes=true --set "k8sServiceHost=$server"
  --set 'securityContext.capabilities.ciliumAgent=[NET_ADMIN,NET_RAW,BPF,PERFMON,SYS_ADMIN]')

# state NODE: what a network leaves on a node.
state() {
  cluster in-node "$1" sh -c '
    ip -o link | sed "s/qlen.*link/link/; s/^[0-9]*: //"
    for f in -4 -6; do ip $f rule; ip $f route show table all; ip $f -o addr | sed "s/^[0-9]*//"; ip $f neigh | grep -E "PERMANENT|NOARP|proto"; done
    for d in /sys/class/net/*; do for at in ingress egress; do tc filter show dev ${d##*/} $at 2> /dev/null | sed "s,^,${d##*/} $at ,"; done; done
    (cd /proc/sys/net && grep -r . ipv4/conf ipv6/conf ipv4/ip_forward core 2> /dev/null | grep -vE "random|stable_secret")
    find /run/myelin /sys/fs/bpf /etc/cni/net.d /opt/cni/bin 2> /dev/null | grep -vE "\.debug$|/cgroup2/."' | sort
}

step image
image=$(go run ./image/build -o "$work/image" -arch "$(go env GOARCH)" | awk 'END { print $1 }')
step "three nodes without a network"
cluster up bare
cluster import "$work/image/myelin-$(go env GOARCH).tar"
for node in "${nodes[@]}"; do state "$node" > "$work/before.$node"; done
step "install ${image}"
inside install --apply --wait --timeout 90s --set "image.tag=${image#*:}" "${values[@]}"
cluster kubectl wait node --all --for=condition=Ready --timeout=30s > /dev/null
cluster dns
cluster kubectl -n kube-system rollout status deploy/myelin-operator --timeout=60s
cluster kubectl apply -f - << 'YAML'
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: everybody, namespace: default}
spec: {endpointSelector: {matchLabels: {app: nobody}}, ingress: [{}]}
YAML
realised() { [ "$(cluster kubectl get ciliumnetworkpolicy everybody -o 'jsonpath={.status.realised.nodes}')" = ${#nodes[@]} ]; }
eventually 60 "the policy on all nodes" realised
step "the network, from within, while there is no operator"
cluster kubectl -n kube-system scale deploy/myelin-operator --replicas=0
inside connectivity test
step "another configuration, node by node, while the network is tested"
inside upgrade --wait --timeout 90s --set "image.tag=${image#*:}" "${values[@]}" --set myelin.flowTracking=always &
upgrade=$!
inside connectivity test --test '^(pod|service)'
wait "$upgrade"
cluster kubectl -n kube-system rollout status deploy/myelin-operator --timeout=60s
inside connectivity test --test '^(pod|service)'
step uninstall
cluster kubectl delete ciliumnetworkpolicy everybody > /dev/null
cluster kubectl -n kube-system delete deploy/coredns --grace-period=1 --cascade=foreground > /dev/null
inside uninstall --timeout 90s --set nodeCleanup.force=true --set nodeCleanup.patience=1s
code=0
for node in "${nodes[@]}"; do
  state "$node" > "$work/after.$node"
  diff "$work/before.$node" "$work/after.$node" || { echo "── left on $node: the lines above" >&2; code=1; }
done
[ $code != 0 ] || step "nothing is left on ${nodes[*]}"
exit $code
