#!/bin/sh
# Compiles datapath.c and writes datapath_bpfel.go and .o beside it. Called by `go generate`; needs clang-19,
# llvm-strip-19 and libbpf-dev.
set -eu
cd "$(dirname "$0")"
exec go run github.com/cilium/ebpf/cmd/bpf2go -go-package bpf -target bpfel -cc clang-19 -strip llvm-strip-19 \
	-type event -type trace_slot -type event_type -type event_flag -type listen -type traced_flow \
	-type endpoint -type pod_link -type path -type path_action -type path_mark -type prefix_key \
	-type prefix -type wire \
	-type flow_key -type flow -type cached_flow -type counter -type event_budget -type outcome -type hook \
	-type addr -type mac \
	-type frontend_key -type frontend -type frontend_flag -type backend_set -type backend_set_flag \
	-type backend_slots_key -type backend_slots_row -type maglev_row -type backend \
	-type source_range_key -type nat_tuple -type nat_reply -type nat_entry -type nat_entry_flag \
	-type path_flag -type lb_mode \
	-type lb_dispatch -type affinity_key -type affinity -type origin_key -type origin -type socket_outcome \
	-type service_scope -type probe -type probe_mark -type probe_way \
	-type endpoint_policy -type policy_pair -type peer_class_key -type peer_class -type verdict_key -type verdict \
	-type policy_action -type policy_absent \
	-type policy_l7 -type name_key -type name -type proxy_devices -type proxy_socket \
	-type dns_key -type dns_entry -type dns_bound -type dns_report \
	-type policy_cut -type policy_direction \
	-type port_index -type flow_rate -type share_kind -type share_bound \
	-type member_key -type member_bits -type service_stat -type quic_server_key \
	-type bandwidth_key -type bandwidth -type bandwidth_direction \
	-type netns -type endpoint_flag -type endpoint_slot -type wire_flag -type wire_mark -type prefix_flag \
	-type flow_flag -type flow_seconds -type tunnel_mode \
	Datapath datapath.c -- -O2 -mcpu=v3 -Wall -Wno-unused-function -Wno-enum-conversion -Wno-enum-compare -Werror \
	"-I/usr/include/$(uname -m)-linux-gnu" "$@"
