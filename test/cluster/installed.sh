# Sourced: Myelin on a cluster as users install it, by Helm or by `myelin install`. $values is what they would have in a
# file.
. "$here/place.sh"
values=$home/values.yaml
myelin=$(realpath "${MYELIN_BIN:-$here/../../bin}")/myelin

cluster() { "$here/cluster.sh" "$@"; }
inside() { cluster in-control env "KUBECONFIG=$pki/admin.kubeconfig" "$@"; } # CMD...: as the cluster's administrator
helm() { inside "$bin/helm" --namespace kube-system "$@"; }                   # ARG...
# install|upgrade ARG...
chart() { helm "$1" myelin "$here/../../chart/myelin" --values "$values" --wait --timeout 90s "${@:2}" > /dev/null; }

# bring: the image, on all nodes, and the values; and where the API server is, as kubeadm tells nodes that join.
bring() {
  local work image
  work=$(mktemp -d)
  image=$(cd "$here/../.." && go run ./install/image/build -o "$work" -arch "$(go env GOARCH)" | awk 'END { print $1 }')
  cluster import "$work/myelin-$(go env GOARCH).tar"
  rm -rf "$work"
  printf 'apiVersion: v1\nkind: Config\nclusters:\n- cluster:\n    server: https://%s:6443\n  name: ""\n' $server |
    cluster kubectl -n kube-public create configmap cluster-info --from-file=kubeconfig=/dev/stdin > /dev/null
  cat > "$values" << YAML
image: {tag: ${image#*:}}
k8sServiceHost: auto
kubeProxyReplacement: true
autoDirectNodeRoutes: true
ipv6: {enabled: true}
nodeCleanup: {force: true, patience: 1s}
securityContext:
  capabilities:
    # This machine has no SYS_RESOURCE, which only kernels before 5.11 need.
    ciliumAgent: [NET_ADMIN, NET_RAW, BPF, PERFMON, SYS_ADMIN, SYS_NICE]
YAML
}

# settled [NAMESPACE]: nodes, names and operators are there.
settled() {
  cluster kubectl wait node --all --for=condition=Ready --timeout=30s > /dev/null
  cluster dns
  cluster kubectl -n "${1:-kube-system}" rollout status deploy/myelin-operator --timeout=60s > /dev/null
}
