#!/bin/bash
# node.sh NODE [inside]: a node: network, mount, process, control-group, host-name and IPC namespaces, with /run, /var,
# /opt, /etc, /sys and a BPF file system of its own. The node's first process is `pause`: what ends it ends everything
# on the node. Run by cluster.sh, which passes MYELIN_CLUSTER.
set -euo pipefail
. "$(dirname "$(realpath "$0")")/place.sh"
node=$1
dir=$home/$node

# groups: a child of this process's own place in each hierarchy. Their directories are kept in a file, for whoever
# enters or removes the node.
groups() {
  local group hierarchy
  : > "$dir/groups"
  while read -r group hierarchy; do
    mkdir -p "$group/$name-$node"
    if [ "$hierarchy" = cpuset ]; then
      cat "$group/cpuset.cpus" > "$group/$name-$node/cpuset.cpus"
      cat "$group/cpuset.mems" > "$group/$name-$node/cpuset.mems"
      echo 1 > "$group/$name-$node/cgroup.clone_children"
    fi
    echo "$group/$name-$node" >> "$dir/groups"
  done < <(groups_of_self)
}

make() {
  local group child try
  mkdir -p "$dir"/{opt/cni/bin,etc,etc-work,sysctl} \
    "$dir"/var/{lib/kubelet,lib/containerd,lib/cni,log/pods,log/containers,tmp,cache}
  ln -sfn /run "$dir/var/run"
  chmod 1777 "$dir/var/tmp"
  rm -f "$dir/ready"
  groups
  (
    while read -r group; do echo $BASHPID > "$group/cgroup.procs"; done < "$dir/groups"
    exec setsid nsenter --net="/run/netns/$name-$node" unshare -m -u -i -C -p -f --kill-child=SIGKILL \
      --propagation private \
      bash "$here/node.sh" "$node" inside > "$logs/node-$node.log" 2>&1 < /dev/null
  ) &
  child=$!
  for ((try = 0; try < 100; try++)); do [ ! -e "$dir/ready" ] || break; sleep 0.1; done
  [ -e "$dir/ready" ] || die "node $node did not start: $logs/node-$node.log"
  tr -d ' ' < "/proc/$child/task/$child/children" > "$pids/node-$node"
}

# control_groups: the hierarchies anew, so that they begin at the node's own groups.
control_groups() {
  local group hierarchy
  mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
  while read -r group hierarchy; do
    group=/sys/fs/cgroup/$(cut -d/ -f5 <<< "$group")
    mkdir "$group"
    case $hierarchy in
      unified) mount -t cgroup2 cgroup2 "$group" ;;
      name=*) mount -t cgroup -o "none,$hierarchy" cgroup "$group" ;;
      *) mount -t cgroup -o "$hierarchy" cgroup "$group" ;;
    esac
  done < <(groups_of_self)
}

inside() {
  local file
  hostname "$node"
  mount -t proc proc /proc
  umount -Rl /run/netns 2> /dev/null || true
  umount -Rl /sys
  mount -t sysfs sysfs /sys
  control_groups
  mount -t bpf bpf /sys/fs/bpf
  mount -t tmpfs -o ro tmpfs /sys/kernel/mm/hugepages # there may be no control group for them
  # settings of the whole machine that kubelet makes: it gets copies
  for file in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
    kernel/keys/root_maxbytes; do
    mkdir -p "$dir/sysctl/$(dirname $file)"
    cat /proc/sys/$file > "$dir/sysctl/$file"
    mount --bind "$dir/sysctl/$file" /proc/sys/$file
  done
  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir -p /run/lock /run/netns
  mount --bind "$dir/var" /var
  mount --bind "$dir/opt" /opt
  mount -t overlay -o "lowerdir=/etc,upperdir=$dir/etc,workdir=$dir/etc-work" overlay /etc
  rm -rf /etc/cni
  mkdir -p /etc/cni/net.d /etc/kubernetes/manifests
  tr -d - < /proc/sys/kernel/random/uuid > /etc/machine-id
  echo "nameserver 127.0.0.1" > /etc/resolv.conf
  echo "127.0.0.1 localhost $node" > /etc/hosts
  sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
  mount --make-rshared /
  touch "$dir/ready"
  exec "$bin/pause"
}

case ${2-make} in inside) inside ;; *) make ;; esac
