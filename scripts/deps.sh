#!/bin/bash
# deps.sh [demo|build|test|vm|bench|all]...: what a fresh Debian machine lacks. Idempotent; asks the network only for what is missing.
#   demo   what a running agent, `make demo` and the lab use: ip, ping
#   build  to regenerate committed code: clang, BPF and kernel headers, protoc
#   test   demo, and what the tests drive or watch packets with
#   vm     QEMU, and the kernels of test/vm (test/vm/vm.sh fetch)
#   bench  netperf, unpacked into the cache folder, nothing installed into /
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/apt.sh"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/myelin

missing() { local p; for p; do dpkg-query -W -f '${Status}\n' "$p" 2>/dev/null | grep -q '^install ok installed' || echo "$p"; done; }

install() {
  local want
  mapfile -t want < <(missing "$@")
  [ ${#want[@]} -gt 0 ] || return 0
  echo "deps: installing ${want[*]}" >&2
  [ "$(id -u)" = 0 ] || { echo "deps: need root to install ${want[*]}" >&2; exit 1; }
  apt_quiet update >&2
  apt_quiet install -y --no-install-recommends "${want[@]}" >&2
}

# netperf is non-free in Debian 12 and not in a default source list: fetched through a list beside the system's.
netperf() {
  local dir=$cache/netperf component=main
  if [ ! -x "$dir/bin/netperf" ]; then
    [ "$(debian_codename)" != bookworm ] || component=non-free
    own_apt_init "$dir/apt" "$(debian_codename):main" "$(debian_codename):$component"
    own_apt update >&2
    mkdir -p "$dir/deb" "$dir/root" "$dir/bin"
    (cd "$dir/deb" && own_apt download netperf libsctp1 >&2)
    for deb in "$dir"/deb/*.deb; do dpkg -x "$deb" "$dir/root"; done
    for tool in netserver netperf; do
      printf '#!/bin/sh\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "$dir/root/usr/lib/$(uname -m)-linux-gnu" "$dir/root/usr/bin/$tool" > "$dir/bin/$tool"
      chmod +x "$dir/bin/$tool"
    done
    rm -rf "$dir/apt" "$dir/deb"
  fi
  echo "netperf: $dir/bin"
}

demo() { install ca-certificates iproute2 iputils-ping; }
build() { install ca-certificates clang-19 llvm-19 libbpf-dev linux-libc-dev protobuf-compiler; }
tests() { demo; install tcpdump ethtool procps; }
vm() { install qemu-system-x86; "$here/../test/vm/vm.sh" fetch -k 6.12 -k 5.10; }
bench() { demo; install procps; netperf; }

for what in "${@:-all}"; do
  case $what in
    demo) demo ;; build) build ;; test) tests ;; vm) vm ;; bench) bench ;;
    all) build; tests; bench; vm ;;
    *) sed -n 's/^# \{0,1\}//p' "$0" | sed 1d >&2; exit 2 ;;
  esac
done
