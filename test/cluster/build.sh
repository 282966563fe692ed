#!/bin/bash
# build.sh [e2e]: the programs and images of a real cluster, in ${XDG_CACHE_HOME:-$HOME/.cache}/myelin/cluster; with e2e, the upstream test suite too.
# Idempotent. What is there is left alone, and nothing else asks the network. Commands of Kubernetes are built from their source, one at a time.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/../../scripts/kubernetes.sh"
. "$here/../../scripts/apt.sh"
. "$here/images.sh"
coredns_version=1.12.1
plugins_version=1.9.1
dir=${XDG_CACHE_HOME:-$HOME/.cache}/myelin/cluster
bin=$dir/bin images=$dir/images
KUBERNETES_GOFLAGS=${KUBE_BUILD_GOFLAGS-}
mkdir -p "$bin" "$images"
exec 9> "$dir/lock"
flock 9

# make FILE CMD...: says what it does, and how long that took, if $bin/FILE is not there.
make() {
  local file=$1 begin=$SECONDS; shift
  [ ! -x "$bin/$file" ] || return 0
  "$@" "$file"
  echo "build: $file in $((SECONDS - begin)) s" >&2
}

own() { (cd "$here/../.." && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$bin/$1" "./test/cluster/$1"); }
upstream() { kubernetes_build "$dir" "$1"; }
image_program() { kubernetes_build "$dir" "$1" "k8s.io/kubernetes/test/images/$1"; }
ginkgo() { kubernetes_build "$dir" "$1" github.com/onsi/ginkgo/v2/ginkgo; }
suite() { (cd "$dir/module" && kubernetes_go test -c -o "$bin/$1" k8s.io/kubernetes/test/e2e); }

coredns() {
  mkdir -p "$dir/coredns"
  printf 'module coredns\n\ngo 1.24\n\nrequire github.com/coredns/coredns v%s\n' "$coredns_version" > "$dir/coredns/go.mod"
  (cd "$dir/coredns" && kubernetes_go build -o "$bin/$1" github.com/coredns/coredns)
}

# cni_plugin FILE: what Myelin is compared with.
cni_plugin() {
  local main=main
  [ "$1" != host-local ] || main=ipam
  mkdir -p "$dir/plugins"
  printf 'module plugins\n\ngo 1.24\n\nrequire github.com/containernetworking/plugins v%s\n' "$plugins_version" > "$dir/plugins/go.mod"
  (cd "$dir/plugins" && kubernetes_go build -o "$bin/$1" "github.com/containernetworking/plugins/plugins/$main/$1")
}

# containerd: that of the distribution's next release, which knows Kubernetes 1.34; unpacked, not installed.
containerd() {
  local file
  own_apt_init "$dir/apt" trixie:main
  own_apt update >&2
  mkdir -p "$dir/deb" "$dir/root"
  (cd "$dir/deb" && own_apt download containerd >&2)
  dpkg -x "$dir"/deb/containerd_*.deb "$dir/root"
  for file in containerd-shim-runc-v2 ctr containerd; do cp "$(find "$dir/root" -type f -name "$file" -path '*bin*')" "$bin/"; done
  rm -rf "$dir/apt" "$dir/deb" "$dir/root"
}

# shared: what the tests of kube/ have built.
shared() {
  local from
  from=$("$here/../kube/build.sh")
  cp "$from/$1" "$bin/$1.new"
  mv "$bin/$1.new" "$bin/$1"
}

make pause own
make containerd containerd
for what in etcd kube-apiserver; do make $what shared; done
[ -e "$dir/module/go.mod" ] || kubernetes_module "$dir/module" cluster
for what in kubelet kube-controller-manager kube-scheduler kubectl; do make $what upstream; done
for what in agnhost regression-issue-74839; do make $what image_program; done
make coredns coredns
for what in ptp host-local; do make $what cni_plugin; done
case ${1-} in
  '') ;;
  e2e)
    make ginkgo ginkgo
    make e2e.test suite
    ;;
  *) echo "build.sh [e2e]" >&2; exit 2 ;;
esac
[ -e "$images/made" ] || { make_images && touch "$images/made"; }
echo "$dir"
