# Sourced: how commands of Kubernetes are built from their source. Nothing of it is in the tree's own module.
kubernetes_version=1.34.4

# kubernetes_module DIR NAME: a module that builds commands of Kubernetes, whose own go.mod replaces its libraries by
# folders beside it.
kubernetes_module() {
  local dir=$1 name=$2 source libraries
  mkdir -p "$dir"
  source=$(cd "$dir" && go mod download -json "k8s.io/kubernetes@v$kubernetes_version" \
    | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  libraries=$(sed -n 's#^\t\(k8s.io/[a-z-]*\) => ./staging/.*#\1#p' "$source/go.mod")
  {
    printf 'module %s\n\n' "$name"
    grep -E '^(go|godebug) ' "$source/go.mod"
    sed -n '/^godebug ($/,/^)$/p' "$source/go.mod"
    printf '\nrequire k8s.io/kubernetes v%s\n' "$kubernetes_version"
    for library in $libraries; do printf 'replace %s => %s v0.%s\n' "$library" "$library" "${kubernetes_version#1.}"; \
      done
  } > "$dir/go.mod"
}

# kubernetes_go CMD ARG...: the go command on the module in this folder, static, with Kubernetes' version written in.
kubernetes_go() {
  local version=k8s.io/component-base/version client=k8s.io/client-go/pkg/version flags package
  flags='-s -w'
  for package in "$version" "$client"; do
    flags+=" -X $package.gitVersion=v$kubernetes_version"
    flags+=" -X $package.gitMajor=1 -X $package.gitMinor=${kubernetes_version:2:2}"
  done
  CGO_ENABLED=0 GOFLAGS="-mod=mod -buildvcs=false ${KUBERNETES_GOFLAGS-}" nice go "$1" -trimpath \
    -ldflags "$flags" "${@:2}" >&2
}

# kubernetes_build DIR COMMAND [PACKAGE]: DIR/bin/COMMAND, of the module in DIR/module.
kubernetes_build() { (cd "$1/module" && kubernetes_go build -o "$1/bin/$2" "${3:-k8s.io/kubernetes/cmd/$2}"); }
