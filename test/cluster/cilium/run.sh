#!/bin/bash
# run.sh: a cluster with the real Cilium goes over to Myelin node by node, by the steps that `myelin install` prints,
# while pods of nodes that have not gone over yet run on, keep their connections, and reach the others. Builds Cilium
# first, and is no part of `make test` for that.
set -euo pipefail
here=$(dirname "$(dirname "$(realpath "$0")")")
cd "$here/../.."
export MYELIN_CLUSTER=${MYELIN_CLUSTER:-m$((BASHPID % 10000000))}
. "$here/place.sh"
. scripts/cilium.sh
. "$here/cilium/manifests.sh"
myelin=$(realpath "${MYELIN_BIN:-bin}")/myelin
cilium=$("$here/cilium/build.sh")
work=$(mktemp -d)
trap '[ -n "${KEEP-}" ] || "$here/cluster.sh" down; rm -rf "$work"' EXIT
step() { echo "── $* ($SECONDS s)"; }
cluster() { "$here/cluster.sh" "$@"; }
system() { kubectl -n kube-system "$@"; }
inside() { cluster in-control env "KUBECONFIG=$pki/admin.kubeconfig" "$@"; } # CMD..., as the administrator
values=(--set kubeProxyReplacement=true --set ipv6.enabled=true --set autoDirectNodeRoutes=true \
  --set "k8sServiceHost=$server"
  --set 'securityContext.capabilities.ciliumAgent=[NET_ADMIN,NET_RAW,BPF,PERFMON,SYS_ADMIN]')

# APP NODE: the newest
pod_of() { kubectl get pod -l "app=$1" --field-selector "spec.nodeName=$2" --sort-by=.metadata.creationTimestamp \
  -o 'jsonpath={.items[-1:].metadata.name}'; }
# POD
addresses() { kubectl get pod "$1" -o 'jsonpath={.status.podIPs[*].ip}'; }
ready() { kubectl wait "$@" --for=condition=Ready --timeout=300s > /dev/null; }
bracket() { case $1 in *:*) echo "[$1]" ;; *) echo "$1" ;; esac; }

# asks FROM URL...: each has an answer, in the pod FROM, within ten seconds.
asks() {
  kubectl exec "$1" -- bash -c 'for url; do
      for ((i = 0; i < 10; i++)); do curl -gsS -o /dev/null -m 2 "$url" 2> /tmp/why && continue 2; sleep 1; done
      echo "$0: $url: $(cat /tmp/why)" >&2; exit 1
    done' "$@"
}

# reach: each echo asks each, and the Service, its node ports, over both families; so do the hosts.
reach() {
  local node to a urls=() try
  for to in "${nodes[@]}"; do
    ready "pod/$(pod_of echo "$to")"
    for a in $(addresses "$(pod_of echo "$to")"); do urls+=("http://$(bracket "$a"):8080/hostname"); done
    for a in "$(address4 "$to")" "$(address6 "$to")"; do urls+=("http://$(bracket "$a"):30080/hostname"); done
  done
  for a in $(kubectl get service echo -o 'jsonpath={.spec.clusterIPs[*]}'); do for try in 1 2 3 4 5 6; \
    do urls+=("http://$(bracket "$a")/hostname?$try"); done; done
  for node in "${nodes[@]}"; do
    asks "$(pod_of echo "$node")" "${urls[@]}"
    for a in "${urls[@]}"; do cluster in-node "$node" curl -gsS -o /dev/null -m 3 --retry 3 --retry-all-errors \
      --retry-delay 1 "$a" || die "$node itself: $a"; done
  done
}

# talk FROM TO FAMILY: a connection that must last, from a pod on one node to a pod on another.
talk() {
  local pod="talk-$1-$2-$3" to
  to=$(addresses "keep-$2" | cut -d' ' -f$((($3 - 2) / 2)))
  talker "$pod" "$1" "$to" "$3" | kubectl apply -f - > /dev/null
  ready "pod/$pod"
  talks+=("$pod")
}

# talking: all connections go on: the pods have not been restarted, and have said more than before.
talking() {
  local pod before
  for pod in "${talks[@]}"; do
    before=$(kubectl exec "$pod" -- cat /tmp/count)
    sleep 1
    [ "$(kubectl exec "$pod" -- cat /tmp/count)" -gt "$before" ] || die "$pod has stopped at $before"
    [ "$(kubectl get pod "$pod" -o 'jsonpath={.status.containerStatuses[0].restartCount}')" = 0 ] \
      || die "$pod has lost its connection"
  done
}

# same NAME...: pods are those that they were, without a restart.
same() {
  local pod now
  for pod; do
    now=$(kubectl get pod "$pod" -o 'jsonpath={.metadata.uid} {.status.containerStatuses[0].restartCount}')
    [ ! -e "$work/$pod" ] || [ "$now" = "$(cat "$work/$pod")" ] || die "$pod is another one: $now"
    [[ $now == *' 0' ]] || die "$pod was restarted: $now"
    echo "$now" > "$work/$pod"
  done
}

# leavings NODE: what Cilium has left there.
leavings() {
  cluster in-node "$1" sh -c '
    ip -o link | grep -E " (cilium|lxc)"
    for f in -4 -6; do ip $f rule | grep -E "200[45]|^100:"; ip $f rule | grep -q "^0:.*local" ||
        echo "no rule for local addresses"
      ip $f route show table all | grep -E "cilium|lxc|via.*proto kernel"; done
    for d in /sys/class/net/*; do for at in ingress egress; do
      tc filter show dev ${d##*/} $at 2> /dev/null | grep cil_; done; done
    iptables-save | grep CILIUM; ip6tables-save | grep CILIUM; ipset list -n | grep cilium
    find /run /sys/fs/bpf /etc/cni /etc/sysctl.d /opt/cni | grep -i cilium | grep -v "cilium_bak"; true' 2> /dev/null
  cluster in-node "$1" "$myelin" doctor -q 2>&1 | grep -i cilium || true
}

# over NODE: what the steps say for each node.
over() {
  local node=$1 pod
  kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data --force > /dev/null 2>&1
  kubectl label node "$node" myelin.io/cilium- > /dev/null
  pod=$(pod_of echo "$node")
  kubectl delete pod "$pod" --wait=false > /dev/null
  eventually 300 "agent on $node" agent_ready "$node"
  kubectl uncordon "$node" > /dev/null
}
agent_ready() { system get pod -l k8s-app=myelin --field-selector "spec.nodeName=$1" \
  -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}' | grep -q True; }

# private NODE: parameters of the whole machine that Cilium sets: it gets copies, as kubelet does.
private() {
  local file
  for file in unprivileged_bpf_disabled timer_migration; do
    cluster in-node "$1" sh -c "[ ! -e /proc/sys/kernel/$file ] || { cat /proc/sys/kernel/$file > /var/$file &&
      mount --bind /var/$file /proc/sys/kernel/$file; }"
  done
}

step "image of Myelin"
image_name=$(go run ./install/image/build -o "$work/image" -arch "$(go env GOARCH)" | awk 'END { print $1 }')
values+=(--set "image.tag=${image_name#*:}")
step "three nodes without a network"
cluster up bare
cluster import "$work/image/myelin-$(go env GOARCH).tar"
cluster import "$cilium"/images/localhost_cilium_*.tar
for node in "${nodes[@]}"; do private "$node"; done
step "Cilium $cilium_version by Helm"
cilium_values > "$work/cilium.yaml"
inside "$bin/helm" install cilium "$cilium/chart" -n kube-system -f "$work/cilium.yaml" > "$work/helm.log" 2>&1 \
  || { cat "$work/helm.log" >&2; exit 1; }
system rollout status daemonset/cilium --timeout=300s > /dev/null
kubectl wait node --all --for=condition=Ready --timeout=120s > /dev/null
kubectl apply -f "$here/coredns.yaml" > /dev/null
system rollout status deploy/coredns --timeout=300s > /dev/null # Cilium compiles a program first
echoes | kubectl apply -f - > /dev/null
for node in "${nodes[@]}"; do keeper "keep-$node" "$node" | kubectl apply -f - > /dev/null; done
policy | kubectl apply -f - > /dev/null
{ server closed n3 closed; server friend n2 friend; server stranger n2 stranger; } | kubectl apply -f - > /dev/null
ready pod -l app=keeper
ready pod/closed pod/friend pod/stranger
reach
talks=()
talk n2 n3 4
talk n3 n2 6
same keep-n2 keep-n3
# enforced FROM…: each friend is let in, and the stranger is not.
enforced() {
  local a pod
  for a in $(addresses closed); do
    for pod; do asks "$pod" "http://$(bracket "$a"):8080/hostname"; done
    ! kubectl exec stranger -- curl -gsS -m 2 -o /dev/null "http://$(bracket "$a"):8080/" 2> /dev/null \
      || die "the policy is not in force: stranger reaches $a"
  done
}
enforced friend

step "Myelin refuses, and says how"
! inside "$myelin" install --apply "${values[@]}" > "$work/refused" 2>&1 || die "Myelin was installed beside Cilium"
grep -q 'kubectl label nodes --all myelin.io/cilium=true' "$work/refused" || die "no steps: $(cat "$work/refused")"
! inside "$myelin" install --apply --migrate-from-cilium "${values[@]}" > "$work/refused" 2>&1 \
  || die "Cilium's agents are everywhere, and Myelin was installed"
step "Cilium is kept to nodes with a label, and Myelin comes"
kubectl label nodes --all myelin.io/cilium=true > /dev/null
system patch daemonset cilium -p '{"spec": {"template": {"spec": {"nodeSelector": {"myelin.io/cilium": "true"}}}}}' \
  > /dev/null
system rollout status daemonset/cilium --timeout=300s > /dev/null
system scale deployment cilium-operator --replicas=0 > /dev/null
inside "$myelin" install --apply --wait --timeout 180s --migrate-from-cilium "${values[@]}"
reach
talking
for node in "${nodes[@]}"; do
  step "$node goes over"
  over "$node"
  left=$(leavings "$node")
  [ -z "$left" ] || die "left on $node:"$'\n'"$left"
  keeper "keep-$node" "$node" | kubectl apply -f - > /dev/null
  ready "pod/keep-$node"
  reach
  case $node in
    n1)
      talking
      same keep-n2 keep-n3
      enforced friend
      talk n3 n1 4
      talk n1 n3 6
      talks=(talk-n3-n1-4 talk-n1-n3-6)
      ;;
    n2)
      talking
      same keep-n1 keep-n3
      { server friend n2 friend; server stranger n1 stranger; } | kubectl apply -f - > /dev/null
      ready pod/friend
      # Cilium knows no labels of pods that have gone over, as docs/migration.md says.
      ! kubectl exec friend -- curl -gsS -m 2 -o /dev/null "http://$(addresses closed | cut -d' ' -f1):8080/" \
        2> /dev/null || die "Cilium lets a friend in that has gone over"
      talks=()
      talk n1 n2 4
      talk n2 n1 6
      ;;
    n3)
      talking
      rm -f "$work/keep-n2"
      same keep-n1 keep-n2
      ;;
  esac
done
step "Cilium is uninstalled, and its policies are Myelin's"
server closed n3 closed | kubectl apply -f - > /dev/null
ready pod/closed pod/friend pod/stranger
inside "$bin/helm" uninstall cilium -n kube-system > /dev/null 2>&1
inside "$myelin" upgrade --wait --timeout 300s "${values[@]}"
realised() { [ "$(kubectl get ciliumnetworkpolicy closed -o 'jsonpath={.status.realised.nodes}')" = ${#nodes[@]} ]; }
eventually 60 "the policy on all nodes" realised
enforced friend
reach
talking
step "done"
