# Sourced: how the real Cilium is built from its source, for what is to be compared or migrated. Nothing of it is in the
# tree's own module.
cilium_version=1.18.4

# cilium_source: the folder of its module, which has its C and its chart, too.
cilium_source() { (cd / && go mod download -json "github.com/cilium/cilium@v$cilium_version" \
  | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'); }

# cilium_module DIR SOURCE: a module that builds its commands, of the very versions that its own go.mod names. But for
# its fork of k8s.io/apimachinery, which the registry doesn't give out: in its place there is upstream's of that
# version, without `omitzero` in one converter.
cilium_module() {
  mkdir -p "$1"
  {
    sed -e 's/^module .*/module cilium/' -e '/^tool ($/,/^)$/d' -e '/^replace k8s.io\/apimachinery /d' "$2/go.mod"
    printf '\nrequire github.com/cilium/cilium v%s\n' "$cilium_version"
  } > "$1/go.mod"
  install -m 644 "$2/go.sum" "$1/go.sum"
}

# cilium_build DIR COMMAND PACKAGE: DIR/bin/COMMAND, of the module in DIR/module, static.
cilium_build() {
  (cd "$1/module" && CGO_ENABLED=0 GOFLAGS="-mod=mod -buildvcs=false" nice -n 5 go build -trimpath \
    -tags osusergo,ipam_provider_operator \
    -ldflags "-s -w -X 'github.com/cilium/cilium/pkg/version.ciliumVersion=$cilium_version myelin'" \
      -o "$1/bin/$2" "github.com/cilium/cilium/$3" >&2)
}
