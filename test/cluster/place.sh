# Sourced: where a cluster of test/cluster is, and how its places are entered. $name is the cluster's.
here=${here:-$(dirname "$(realpath "${BASH_SOURCE[0]}")")}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/myelin/cluster
name=${MYELIN_CLUSTER:-kube}
home=$cache/run/$name bin=${MYELIN_CLUSTER_BIN:-$cache/bin} images=${MYELIN_CLUSTER_IMAGES:-$cache/images}
pki=$home/pki logs=$home/log pids=$home/pid
nodes=(n1 n2 n3)
server=172.30.0.10

host() { cat "$home/$1/host" 2> /dev/null || echo "1${1#n}"; } # NODE: the last byte of its addresses
address4() { echo "172.30.0.$(host "$1")"; }                  # NODE
address6() { echo "fd30::$(host "$1")"; }                     # NODE
die() { echo "cluster: $*" >&2; exit 1; }

# groups: this process's directories in the hierarchies of control groups, one a line: DIRECTORY HIERARCHY.
groups_of_self() {
  local id controller path base
  while IFS=: read -r id controller path; do
    base=${controller#name=}
    echo "/sys/fs/cgroup/${base:-unified}${path%/} ${controller:-unified}"
  done < /proc/self/cgroup
}

# in_node NODE CMD...: in the node's control groups and namespaces, in the place of this process.
in_node() {
  local node=$1 group; shift
  while read -r group; do echo $BASHPID > "$group/cgroup.procs"; done < "$home/$node/groups"
  exec nsenter -t "$(cat "$pids/node-$node")" -m -u -i -n -p -C -- "$@"
}

in_control() { exec ip netns exec "$name-cp" "$@"; } # CMD...
kubectl() { (administer "$@"); }
# ARG...: in the place of this process
administer() { in_control "$bin/kubectl" --kubeconfig "$pki/admin.kubeconfig" "$@"; }

# background NAME CMD...: runs on, with $logs/NAME.log and $pids/NAME.
background() {
  local what=$1; shift
  set -m # a process group of its own: what ends this script does not end it
  ("$@") > "$logs/$what.log" 2>&1 < /dev/null &
  set +m
  echo $! > "$pids/$what"
}

# finish NAME [SIGNAL]: ends what `background` began, after 4 s by force, and waits until it is gone. In a node that is
# the only child of nsenter.
finish() {
  local pid try
  pid=$(cat "$pids/$1" 2> /dev/null) || return 0
  [ "$(cat "/proc/$pid/comm" 2> /dev/null)" != nsenter ] || pid=$(cat "/proc/$pid/task/$pid/children" 2> /dev/null \
    || true)
  pid=${pid% }
  kill "-${2:-TERM}" "$pid" 2> /dev/null || true
  for ((try = 0; try < 40; try++)); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
  kill -KILL "$pid" 2> /dev/null || true
  rm -f "$pids/$1"
}

# eventually SECONDS WHAT CMD...: until it succeeds.
eventually() {
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@" > /dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "$what: not in time"
    sleep 0.2
  done
}
