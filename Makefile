# make help lists what there is. Root is needed for everything that makes network namespaces: demo, test, bench.
SHELL := /bin/bash
export CGO_ENABLED := 0
# programs and tests are built with the same flags, so that a package is compiled once for both
export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath
# the folder of the programs under test, for tests that drive them
export MYELIN_BIN := $(CURDIR)/bin
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GO_BUILD := go build -ldflags "-s -w -X main.version=$(VERSION)"
FUZZ_SECONDS ?= 10
FAMILY ?= 4
ORACLE_PACKETS ?= 1000000
.NOTPARALLEL:
.PHONY: help prefetch demo build image test test-all test-cold test-unit test-packet test-lab test-oracle test-kube \
  test-vm test-encryption test-ui ui test-cluster test-migrate-cilium conformance bench bench-vm bench-encryption \
  bench-bandwidth bench-machine bench-service bench-xdp bench-policy bench-l7 bench-hubble bench-dns bench-lab \
  bench-kube generate generate-check fuzz clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

# The largest module takes as long to download as the standard library to compile: both at once, if neither is cached.
prefetch:
	@go mod download github.com/cilium/cilium & go build ./cni/plugin && wait $$!

demo: prefetch ## a cluster of two nodes on this machine, from YAML to traffic
	$(GO_BUILD) -o bin/ ./cmd/myelin ./cmd/myelin-cni
	scripts/deps.sh demo
	scripts/demo.sh

build: prefetch ## bin/myelin, bin/myelin-cni, bin/myelin-bench: static, no compiler but Go
	$(GO_BUILD) -o bin/ ./cmd/...

image: ## bin/image: the OCI image for amd64 and arm64, with SBOMs; no container engine
	go run ./install/image/build -o bin/image

test: build ## style, unit, packet and the core of the lab, in ten minutes from nothing; names the rest
	scripts/deps.sh test
	go run ./test/rings -core

test-all: build ## everything: all rings, generated files, fuzzing, and a real cluster, for which it builds Kubernetes
	scripts/deps.sh test vm cluster
	test/all.sh

test-cold: build ## how long demo and test take in a fresh clone with empty caches; into bench/results.json
	go run ./test/cold demo test
	bin/myelin-bench

test-unit: build ## pure Go, and what a few network namespaces prove
	scripts/deps.sh test
	go run ./test/rings style unit

test-packet: ## packets through the datapath, BPF_PROG_TEST_RUN
	go run ./test/rings packet

test-lab: build ## nodes and pods as namespaces, real traffic
	scripts/deps.sh test
	go run ./test/rings lab

test-oracle: build ## random packets and policies (ORACLE_PACKETS=1,000,000): sockets receive what policies allow
	MYELIN_RECORD=1 MYELIN_ORACLE_PACKETS=$(ORACLE_PACKETS) \
	  go test -count=1 -timeout 30m -v -run 'TestOracle$$' ./test/lab

test-kube: build ## the Kubernetes source and the operator with a real API server, which is built first
	MYELIN_KUBE_BIN=$$(test/kube/build.sh) go test -count=1 ./kube/... ./operator/... ./test/kube

test-vm: build ## the packet and lab rings on kernels 6.12 and 5.10
	scripts/deps.sh test vm
	go run ./test/rings vm

test-encryption: build ## leaks while nodes join and reboot, 100 rotations of IPsec's key, in the VM; an hour
	scripts/deps.sh test vm
	go test -c -o bin/lab.test ./test/lab
	cd test/lab && ../vm/vm.sh run -t 10800 -m 3G --nics -w ../../bench -- env MYELIN_BIN=$(CURDIR)/bin \
	  MYELIN_RECORD=1 MYELIN_TEST_SLOW=10 $(CURDIR)/bin/lab.test -test.v -test.timeout 3h \
	  -test.run '^(TestEncryptionLeaks|TestIPsecRotate)$$'
	bin/myelin-bench

test-ui: build ## the web page in a browser, and whether its built files are fresh; needs Node.js and Chromium
	scripts/deps.sh ui
	scripts/ui.sh test

ui: ## hubble/ui/dist, the web page, from its source in hubble/ui/web; needs Node.js
	scripts/deps.sh ui
	scripts/ui.sh build

test-cluster: build ## real kubelets, and upstream's specs for ten minutes; builds Kubernetes first
	scripts/deps.sh cluster
	test/cluster/run.sh short

test-migrate-cilium: build ## migrates from the real Cilium node by node; builds Cilium first, in half an hour
	scripts/deps.sh cilium
	test/cluster/cilium/run.sh

conformance: build ## all of upstream's network specs on it, undisturbed and disturbed; writes docs/conformance.md
	scripts/deps.sh cluster
	for how in all disturbed; do MYELIN_RECORD=1 test/cluster/run.sh $$how || exit; done

bench: bench-vm bench-encryption bench-bandwidth bench-machine bench-service bench-xdp bench-policy bench-l7 \
  bench-hubble bench-dns bench-lab bench-kube ## all benchmarks, with budgets
	bin/myelin-bench -check

bench-vm: build ## netperf in the VM, by instruction counting
	scripts/deps.sh bench vm
	bin/myelin-bench -mode vm -family $(FAMILY)
	bin/myelin-bench -mode vm -family $(FAMILY) -scenarios veth,node-bigtcp,bigtcp -tests stream80k,rr80k

bench-encryption: build ## WireGuard and IPsec in the VM, by instruction counting
	scripts/deps.sh bench vm
	bin/myelin-bench -mode encryption -family $(FAMILY) -tests rr,crr,stream

bench-bandwidth: build ## bandwidth limits, latency beside them and BBR, in the VM in virtual time
	scripts/deps.sh vm
	go test -c -o bin/lab.test ./test/lab
	cd test/lab && ../vm/vm.sh run --icount -t 7200 -m 3G -w ../../bench -- env MYELIN_BIN=$(CURDIR)/bin \
	  MYELIN_RECORD=1 MYELIN_TEST_SLOW=20 $(CURDIR)/bin/lab.test -test.v -test.timeout 2h \
	  -test.run '^(TestBandwidthPods|TestBandwidthLoss|TestBandwidthLatency|TestBBR)$$'
	bin/myelin-bench

bench-machine: build ## netperf on this machine, pinned and interleaved
	scripts/deps.sh bench
	bin/myelin-bench -mode machine -family $(FAMILY)

bench-service: build ## Services at scale, against the real kube-proxy: new connections, changes, rollouts
	scripts/deps.sh kubeproxy
	bin/myelin-bench -mode service -family $(FAMILY)

bench-xdp: build ## packets a second through a load balancer, by XDP, tc and the real kube-proxy; ns a packet
	scripts/deps.sh kubeproxy
	bin/myelin-bench -mode xdp -family $(FAMILY)

bench-policy: build ## policies: packets against the reference, changes among 10,000
	MYELIN_RECORD=1 go test -count=1 -run 'TestDifferential$$' ./policy/engine
	bin/myelin-bench -mode policy

bench-l7: build ## HTTP requests through an L7 policy, compared with direct ones and with Envoy in the proxy's place
	scripts/deps.sh envoy
	bin/myelin-bench -mode l7 -family $(FAMILY)

bench-hubble: build ## 100,000 events a second into an agent; the real Hubble CLI, which is built first, in ten minutes
	scripts/deps.sh test
	scripts/hubble.sh
	MYELIN_RECORD=1 go test -count=1 -timeout 20m -v -run 'TestEventRate|TestHubbleCLI|TestPolicyReplay' ./test/lab
	bin/myelin-bench

bench-dns: build ## DNS through the proxy: rates, latencies, first connections to 20,000 names, 100 pods with policies
	scripts/deps.sh test
	MYELIN_RECORD=1 go test -count=1 -timeout 20m -v -run 'TestDNSLoad|TestDNSConnect|TestDNSUpdate' ./test/lab
	bin/myelin-bench

bench-lab: build ## restarts, churn and scale in the lab, where every test also measures
	scripts/deps.sh test
	MYELIN_RECORD=1 go test -count=1 -timeout 20m -run \
	  'TestScale|TestRestart|TestChurn|TestPolicyRestart|TestOldConnections|TestFloods|TestConnectionRate' ./test/lab
	bin/myelin-bench

bench-kube: build ## an agent among 1,000 nodes and 20,000 pods, with a real API server
	MYELIN_KUBE_BIN=$$(test/kube/build.sh) && export MYELIN_KUBE_BIN && \
	  MYELIN_RECORD=1 go test -count=1 -run TestScale ./test/kube
	bin/myelin-bench

generate: ## BPF objects, their Go, the gRPC API: needs clang and protoc, brought by deps
	scripts/deps.sh build
	go generate ./...

generate-check: ## fails where a committed generated file is stale
	scripts/generate-check.sh

fuzz: ## every fuzz target for FUZZ_SECONDS (10)
	scripts/fuzz.sh $(FUZZ_SECONDS)

clean: ## remove what build made; caches stay
	rm -rf bin
