#!/bin/bash
# build.sh: etcd and kube-apiserver for the tests of kube/, from source, in
# ${XDG_CACHE_HOME:-$HOME/.cache}/myelin/kube/bin; prints that folder. Idempotent. What is built already is left alone,
# and nothing else asks the network. Cold it takes about 10 minutes on two cores, and 3 GB below GOCACHE and GOMODCACHE.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/../../scripts/kubernetes.sh"
etcd_version=3.6.4 # what this version of Kubernetes is tested with
dir=${XDG_CACHE_HOME:-$HOME/.cache}/myelin/kube
KUBERNETES_GOFLAGS=${KUBE_BUILD_GOFLAGS-}
mkdir -p "$dir/bin"
exec 9> "$dir/lock"
flock 9

etcd() {
  mkdir -p "$dir/etcd"
  cat > "$dir/etcd/main.go" << 'GO'
// Command etcd is etcd's own main.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
GO
  printf 'module etcd\n\ngo 1.24\n\nrequire go.etcd.io/etcd/server/v3 v%s\n' "$etcd_version" > "$dir/etcd/go.mod"
  (cd "$dir/etcd" && CGO_ENABLED=0 GOFLAGS="-mod=mod -buildvcs=false $KUBERNETES_GOFLAGS" nice go build -trimpath \
    -ldflags '-s -w' -o "$dir/bin/etcd" .) >&2
}

if [ ! -x "$dir/bin/etcd" ]; then
  echo "build: etcd $etcd_version" >&2
  etcd
fi
if [ ! -x "$dir/bin/kube-apiserver" ]; then
  echo "build: kube-apiserver $kubernetes_version" >&2
  kubernetes_module "$dir/module" kubeapiserver
  kubernetes_build "$dir" kube-apiserver
fi
echo "$dir/bin"
