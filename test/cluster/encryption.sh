# Sourced by install.sh: encryption between nodes by WireGuard. Where the kernel has none, it is in processes of the
# DaemonSet myelin-wireguard.

encryption_values=(--set encryption.enabled=true --set encryption.type=wireguard
  --set encryption.wireguard.userspaceFallback=true)

# agent NODE ARG...: `myelin` in the agent's container.
agent() {
  local pod
  pod=$(cluster kubectl -n kube-system get pods -l k8s-app=myelin --field-selector "spec.nodeName=$1" \
    -o 'jsonpath={.items[0].metadata.name}')
  cluster kubectl -n kube-system exec "$pod" -c agent -- /myelin "${@:2}"
}

# encrypts NODE: packets to all other nodes.
encrypts() {
  local list
  list=$(agent "$1" encrypt status -o 'jsonpath={[*].encrypted}')
  [ "$(wc -w <<< "$list")" = $((${#nodes[@]} - 1)) ] && [[ $list != *false* ]]
}

# processes: those that encrypt, of each node. There are none where the kernel does.
processes() {
  local node
  for node in "${nodes[@]}"; do cluster in-node "$node" pgrep -f 'myelin wireguard --run-dir' || true; done
}

# captured TEST...: these tests pass. They are skipped where it is not known that packets are encrypted.
captured() {
  local test
  inside "$myelin" connectivity test --test '^encryption/' | tee "$work/captured"
  for test; do
    grep -q "^passed *$test " "$work/captured" || die "$test has not passed"
  done
}

encryption_test() {
  local before node
  chart upgrade "${encryption_values[@]}"
  settled
  cluster kubectl -n kube-system wait pods -l k8s-app=myelin-wireguard --for=condition=Ready --timeout=60s > /dev/null
  for node in "${nodes[@]}"; do eventually 60 "encryption on $node" encrypts "$node"; done
  captured encryption/pods encryption/pods-and-nodes
  before=$(processes)
  step "helm upgrade: node encryption, by other agents and the same processes, while the network is tested"
  chart upgrade "${encryption_values[@]}" --set encryption.nodeEncryption=true &
  inside "$myelin" connectivity test --test '^pod'
  wait $!
  settled
  captured encryption/pods encryption/pods-and-nodes encryption/nodes
  [ "$(processes)" = "$before" ] || die "the processes that encrypt are other ones: $(processes), were $before"
}
