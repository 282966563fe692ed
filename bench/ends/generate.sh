#!/bin/sh
# Compiles ends.c and writes ends_bpfel.go and .o beside it. Called by `go generate`; needs clang-19, llvm-strip-19 and
# libbpf-dev.
set -eu
cd "$(dirname "$0")"
exec go run github.com/cilium/ebpf/cmd/bpf2go -go-package ends -target bpfel \
	-cc clang-19 -strip llvm-strip-19 -no-global-types -type account -type end \
	ends ends.c -- -O2 -mcpu=v3 -Wall -Werror "-I/usr/include/$(uname -m)-linux-gnu"
