# Sourced: what runs on a node: containerd, kubelet, the agent. Pods whose runtime class has the handler ptp get the
# plugins in /etc/cni/ptp.d, and not Myelin.
runtime() { # NODE
  local node=$1 image program root
  cat > "$home/$node/containerd.toml" << TOML
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.internal.v1.opt"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10.1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "$(command -v runc)"
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ptp]
    runtime_type = "io.containerd.runc.v2"
    cni_conf_dir = "/etc/cni/ptp.d"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.ptp.options]
      BinaryName = "$(command -v runc)"
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
TOML
  for program in ptp host-local; do install -D "$bin/$program" "$home/$node/opt/cni/bin/$program"; done
  background "containerd-$node" in_node "$node" env "PATH=$bin:$PATH" "$bin/containerd" -c "$home/$node/containerd.toml"
  root=/proc/$(cat "$pids/node-$node")/root
  eventually 20 "containerd on $node, see $logs/containerd-$node.log" test -S "$root/run/containerd/containerd.sock"
  [ ! -e "$home/$node/imported" ] || return 0
  for image in "$images"/*.tar; do (in_node "$node" "$bin/ctr" -n k8s.io images import "$image") >> \
    "$logs/images-$node.log" 2>&1; done
  touch "$home/$node/imported"
}

kubelet() { # NODE
  cat > "$home/$1/kubelet.yaml" << YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/serve-$1.crt
tlsPrivateKeyFile: $pki/serve-$1.key
address: 0.0.0.0
clusterDomain: cluster.local
clusterDNS: [10.96.0.10]
resolvConf: /etc/resolv.conf
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
maxPods: 110
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /etc/kubernetes/manifests
enforceNodeAllocatable: [pods]
evictionHard: {memory.available: 100Mi, nodefs.available: 1Gi, imagefs.available: 1Gi, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
serializeImagePulls: false
nodeStatusUpdateFrequency: 2s
YAML
  background "kubelet-$1" in_node "$1" env "PATH=$bin:$PATH" "$bin/kubelet" --config="$home/$1/kubelet.yaml" \
    --kubeconfig="$pki/$1.kubeconfig" \
    --hostname-override="$1" --node-ip="$(address4 "$1"),$(address6 "$1")" --root-dir=/var/lib/kubelet --v=2
}

# install_agent NODE: the plugin where the runtime looks for it, and the agent's configuration. What of the latter a
# test wants otherwise is in $MYELIN_CLUSTER_CONFIG, a file.
install_agent() {
  install -D "$myelin/myelin-cni" "$home/$1/opt/cni/bin/myelin-cni"
  ln -sfn myelin-cni "$home/$1/opt/cni/bin/loopback" # containerd before 2.0 asks for it
  cat > "$home/$1/agent.yaml" << YAML
kubeConfigPath: $pki/myelin.kubeconfig
k8sServiceHost: $server
k8sServicePort: 6443
kubeProxyReplacement: true
autoDirectNodeRoutes: true
ipv6.enabled: true
YAML
  [ -z "${MYELIN_CLUSTER_CONFIG-}" ] || cat "$MYELIN_CLUSTER_CONFIG" >> "$home/$1/agent.yaml"
}

agent() { # start|stop|kill NODE
  case $1 in
    start)
      ! kill -0 "$(cat "$pids/agent-$2" 2> /dev/null)" 2> /dev/null || return 0
      cat "$logs/agent-$2.log" >> "$logs/agents-before-$2.log" 2> /dev/null || true
      background "agent-$2" in_node "$2" "$myelin/myelin" agent --config "$home/$2/agent.yaml" --node-name "$2"
      ;;
    stop) finish "agent-$2" ;;
    kill) finish "agent-$2" KILL ;;
    *) die "agent start|stop|kill NODE" ;;
  esac
}
