#!/bin/bash
# protoc.sh: generate api/v1/*.pb.go from api/v1/*.proto. Needs protoc (Debian: protobuf-compiler) and Go.
# The plugins are built at pinned versions into a folder that is removed at the end; nothing is installed.
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
grpc_plugin=v1.5.1 # a module of its own, so go.mod does not pin it

bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
cd "$root"
# protoc-gen-go comes from the module that the generated code links with: they can't differ.
go build -o "$bin/" google.golang.org/protobuf/cmd/protoc-gen-go
GOBIN=$bin go install "google.golang.org/grpc/cmd/protoc-gen-go-grpc@$grpc_plugin"

PATH=$bin:$PATH protoc --proto_path=api/v1 --go_out=api/v1 --go_opt=paths=source_relative \
  --go-grpc_out=api/v1 --go-grpc_opt=paths=source_relative api/v1/*.proto

# Which protoc the machine has is no difference that matters; its version would make the files differ.
sed -i -E '/^\/\/[[:space:]-]*protoc[[:space:]]+(v[0-9.]+|\(unknown\))$/d' api/v1/*.pb.go
