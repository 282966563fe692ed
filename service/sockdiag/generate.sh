#!/bin/sh
# Compiles destroy.c and writes destroy_bpfel.go and .o beside it. Called by `go generate`; needs clang-19,
# llvm-strip-19 and libbpf-dev.
set -eu
cd "$(dirname "$0")"
exec go run github.com/cilium/ebpf/cmd/bpf2go -go-package sockdiag -target bpfel \
	-cc clang-19 -strip llvm-strip-19 -no-global-types \
	destroy destroy.c -- -O2 -mcpu=v3 -Wall -Wno-unused-function -Werror "-I/usr/include/$(uname -m)-linux-gnu"
