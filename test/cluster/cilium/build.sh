#!/bin/bash
# build.sh: the real Cilium, as an image of this machine's own programs, and its chart, in
# ${XDG_CACHE_HOME:-$HOME/.cache}/myelin/cilium. Idempotent. Needs what scripts/deps.sh cilium installs.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/../../../scripts/cilium.sh"
. "$here/../images.sh"
dir=${XDG_CACHE_HOME:-$HOME/.cache}/myelin/cilium
bin=$dir/bin images=$dir/images
mkdir -p "$bin" "$images"
exec 9> "$dir/lock"
flock 9
"$here/../build.sh" > /dev/null
programs=$(dirname "$dir")/cluster/bin
source=$(cilium_source)
[ -e "$dir/module/go.mod" ] || cilium_module "$dir/module" "$source"

# build COMMAND PACKAGE
build() {
  local begin=$SECONDS
  [ ! -x "$bin/$1" ] || return 0
  cilium_build "$dir" "$1" "$2"
  echo "build: $1 in $((SECONDS - begin)) s" >&2
}

# cilium_root ROOT: what its own Dockerfiles put there, but for Envoy and Hubble's client.
cilium_root() {
  local root=$1 script xtables clang
  base "$root" bash clang-19 ip ipset mount nsenter {iptables,ip6tables}{,-save,-restore}
  clang=$(readlink -f "$(command -v clang-19)") # it looks for libraries beside itself
  mkdir -p "$root$(dirname "$clang")"
  mv "$root/bin/clang-19" "$root$clang"
  ln -s "$clang" "$root/bin/clang"
  xtables=/usr/lib/$(uname -m)-linux-gnu/xtables
  mkdir -p "$root$(dirname "$xtables")" "$root"/{cni,opt/cni/bin,var/lib/cilium}
  cp -r "$xtables" "$root$xtables"
  cp -r "$source/bpf" "$root/var/lib/cilium/bpf"
  chmod -R u+w "$root/var/lib/cilium"
  rm -rf "$root"/var/lib/cilium/bpf/{tests,complexity-tests}
  for script in images/cilium/init-container.sh plugins/cilium-cni/install-plugin.sh \
    plugins/cilium-cni/cni-uninstall.sh; do install "$source/$script" "$root/"; done
  cp "$bin"/{cilium-agent,cilium-dbg,cilium-health-responder,cilium-mount,cilium-sysctlfix,cilium-operator-generic} \
    "$root/usr/bin/"
  cp "$bin/cilium-cni" "$root/opt/cni/bin/"
  cp "$programs/loopback" "$root/cni/"
}

# chart: its own. /lib/modules of the node would be made if there is none, and nodes share that folder with this
# machine.
chart() {
  rm -rf "$dir/chart"
  cp -r "$source/install/kubernetes/cilium" "$dir/chart"
  chmod -R u+w "$dir/chart"
  sed -i 's#path: /lib/modules#path: /var/lib/modules#' "$dir/chart/templates/cilium-agent/daemonset.yaml"
}

build cilium-agent daemon
build cilium-operator-generic operator
build cilium-dbg cilium-dbg
build cilium-health-responder cilium-health/responder
build cilium-cni plugins/cilium-cni
build cilium-mount tools/mount
build cilium-sysctlfix tools/sysctlfix
if [ ! -e "$dir/made" ]; then
  root=$(mktemp -d "$dir/root.XXXX")
  cilium_root "$root"
  image "localhost/cilium:v$cilium_version" "$root" null '["cilium-agent"]'
  rm -rf "$root"
  chart
  touch "$dir/made"
fi
echo "$dir"
