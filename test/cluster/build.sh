#!/bin/bash
# build.sh [e2e]: the programs and images of a real cluster, in ${XDG_CACHE_HOME:-$HOME/.cache}/myelin/cluster; with
# e2e, the upstream test suite too. Idempotent. What is there is left alone, and nothing else asks the network. Commands
# of Kubernetes are built from their source, one at a time.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/../../scripts/kubernetes.sh"
. "$here/../../scripts/apt.sh"
. "$here/images.sh"
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

# module MODULE VERSION PACKAGE FILE: a command of another project, in a module of its own.
module() {
  mkdir -p "$dir/of/$4"
  printf 'module of\n\ngo 1.24\n\nrequire %s %s\n' "$1" "$2" > "$dir/of/$4/go.mod"
  (cd "$dir/of/$4" && kubernetes_go build -o "$bin/$4" "$1$3")
}

# coredns: with the plugins that coredns.yaml names, and those that upstream's specs do: all that there are need 500
# packages more.
coredns() {
  local plugin work=$dir/of/coredns
  mkdir -p "$work"
  {
    printf 'package main\n\nimport (\n\t"github.com/coredns/coredns/coremain"\n'
    for plugin in $(sed -n '/Corefile:/,/^---/s/^        \([a-z]*\).*/\1/p' "$here/coredns.yaml") forward hosts log; do
      [ "$plugin" != prometheus ] || plugin=metrics
      printf '\t_ "github.com/coredns/coredns/plugin/%s"\n' "$plugin"
    done
    printf ')\n\nfunc main() { coremain.Run() }\n'
  } > "$work/main.go"
  printf 'module of\n\ngo 1.24\n\nrequire github.com/coredns/coredns v1.12.1\n' > "$work/go.mod"
  (cd "$work" && kubernetes_go build -o "$bin/$1" .)
}

# helm: what the tests ask for, on Helm's library, in the version that our chart is tested with; what the tree has
# compiled of it isn't compiled again.
helm() {
  mkdir -p "$dir/of/$1"
  cp "$here/../../go.mod" "$here/../../go.sum" "$dir/of/$1/"
  (cd "$here/../.." && CGO_ENABLED=0 GOFLAGS="-mod=mod -buildvcs=false" nice \
    go build -modfile="$dir/of/$1/go.mod" -trimpath -ldflags '-s -w' -o "$bin/$1" test/cluster/helm/main.go)
}

# containerd: that of the distribution's next release, which knows Kubernetes 1.34; unpacked, not installed.
containerd() {
  local file
  own_apt_init "$dir/apt" trixie:main
  own_apt update >&2
  mkdir -p "$dir/deb" "$dir/root"
  (cd "$dir/deb" && own_apt download containerd >&2)
  dpkg -x "$dir"/deb/containerd_*.deb "$dir/root"
  for file in containerd-shim-runc-v2 ctr containerd; do cp "$(find "$dir/root" -type f -name "$file" -path '*bin*')" \
    "$bin/"; done
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
make ptp module github.com/containernetworking/plugins v1.9.1 /plugins/main/ptp # Myelin is compared with it
make host-local module github.com/containernetworking/plugins v1.9.1 /plugins/ipam/host-local
make loopback module github.com/containernetworking/plugins v1.9.1 /plugins/main/loopback # Cilium's image has it
make helm helm
case ${1-} in
  '') ;;
  e2e)
    make ginkgo ginkgo
    make e2e.test suite
    ;;
  *) echo "build.sh [e2e]" >&2; exit 2 ;;
esac
if [ ! -e "$images/made" ]; then # not by ||, in which set -e has no effect
  make_images
  touch "$images/made"
fi
echo "$dir"
