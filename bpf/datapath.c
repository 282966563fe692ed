/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
//go:build ignore

/* All entry points of the datapath, and what they call for each packet, in order. */

#include "../drop/unparsed.h"
#include "../policy/policy.h"
#include "../policy/prefilter/prefilter.h"
#include "../route/decide.h"
#include "../route/neighbour/neighbour.h"
#include "../route/tunnel_send.h"
#include "../encryption/ipsec/ipsec.h"
#include "../encryption/node.h"
#include "ethernet.h"
#include "vlan.h"
#include "../l7/accept.h"
#include "../flow/flow.h"
#include "../flow/fast.h"
#include "../nat/nat.h"
#include "../nat/nat_in.h"
#include "../flow/track.h"
#include "../flow/host.h"
#include "../nat/host.h"
#include "../service/translate.h"
#include "../service/from_pod.h"
#include "../service/from_wire.h"
#include "../service/from_proxy.h"
#include "../service/to_pod.h"
#include "../service/probe.h"
#include "../service/socket.h"
#include "../service/bind.h"
#include "../service/xdp_error.h"
#include "types.h"

/* Forwards a pod's packet along c->path, with masquerading and conntrack if the path's flags ask for them. */
APART int from_pod_forward(struct __sk_buff *skb, __u32 action)
{
	struct cpu *c = cpu_this();
	int outcome = 0, verdict;

	if (!c)
		return TC_ACT_SHOT;
	/* Before NAT, since an ICMP error must quote what the pod sent. */
	verdict = path_refuse(skb, c, &c->path, action);
	if (verdict)
		return verdict;
	if (c->path.flags & PATH_MASQUERADE)
		outcome = nat_out(skb);
	if (flow_tracked(&c->path) &&
	    (!(c->path.flags & PATH_MASQUERADE) || outcome == NEXT_CONTINUE || outcome == NEXT_PROXY))
		outcome = l4_parse(skb, &c->pkt) ?: track_begin(skb);
	if (outcome >= NEXT_DROP)
		return refuse_flow(skb, c, outcome);
	return path_forward(skb, c, &c->path, l7_action(&c->path, action), HOOK_FROM_POD);
}

/* Forwards a pod's packet to a Service's backend, or along c->path if it is not for a Service. */
APART int from_pod_services(struct __sk_buff *skb, __u32 action)
{
	struct cpu *c = cpu_this();
	__u16 slot = c ? c->path.src_slot : SLOT_NONE;
	int outcome = service_from_pod(skb);

	if (outcome == NEXT_CONTINUE)
		return from_pod_forward(skb, action);
	if (c && c->path.src_slot != slot) /* decided for any source */
		path_limit_source(&c->path, slot);
	return service_send(skb, outcome);
}

/* Forwards a pod's packet along c->path, whose flags say whether it may be for a Service or for the proxy. */
INLINE int from_pod_follow(struct __sk_buff *skb, struct cpu *c, __u32 action)
{
	int verdict;

	c->path.action = action;
	if (config.l7 && c->path.flags & PATH_L7 && (verdict = track_proxied(skb)) != TC_ACT_UNSPEC)
		return verdict;
	if (config.services && c->path.flags & PATH_SERVICES)
		return from_pod_services(skb, action);
	return from_pod_forward(skb, action);
}

/* Handles a packet that a pod sends. */
INLINE int pod_receive(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	int parsed, verdict;
	struct cached_path *p;

	if (!c)
		return TC_ACT_SHOT;
	parsed = packet_parse(skb, &c->pkt, HOOK_FROM_POD);
	if (unlikely(skb->vlan_present))
		return drop(skb, c, DROP_VLAN);
	if (unlikely(parsed != PARSED_IP))
		return parsed == PARSED_ARP ? neighbour_arp(skb) : drop_unparsed(skb, c, parsed);
	if (c->pkt.proto == IPPROTO_ICMPV6 && config.ipv6 && (verdict = neighbour_nd(skb)) != TC_ACT_UNSPEC)
		return verdict;
	if (tracking && (verdict = track_from_pod(skb, c)) != TC_ACT_UNSPEC)
		return verdict;
	p = path_find(&c->pkt, false);
	if (unlikely(!p)) {
		if ((verdict = from_pod_decide(skb)) != TC_ACT_UNSPEC)
			return verdict;
		/* Through the kernel's neighbour table, so that it sees that the neighbour is in use. */
		path_via_neighbour(&c->path);
		return from_pod_follow(skb, c, c->path.action);
	}
	if (unlikely(!path_mac_matches(skb, &p->path)))
		return drop_spoofed(skb, c, &p->path);
	if (p->path.flags) {
		c->path = p->path;
		c->snat = p->snat;
		return from_pod_follow(skb, c, p->path.action);
	}
	return path_follow(skb, c, &p->path, p->path.action, HOOK_FROM_POD);
}

/* Packets that a pod sends. */
SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	int verdict;

	if (netkit_passed(skb))
		return TC_ACT_OK;
	if (config.pod_fast && fast_receive(skb, HOOK_FROM_POD, false, &verdict))
		return verdict;
	verdict = pod_receive(skb);
	if (verdict == TC_ACT_OK && netkit_transmits(skb))
		netkit_mark(skb, config.netkit_mark);
	return verdict;
}

/* A wire's packets for a pod are redirected to its link, or passed to the stack, which routes them there. */
#define WIRE_ACTION (config.legacy_routing ? PATH_STACK : PATH_POD)

/* Forwards a wire's packet to a pod along c->path, with conntrack if its flow has an entry. */
APART int from_wire_forward(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	int outcome;

	if (!c)
		return TC_ACT_SHOT;
	if (flow_tracked(&c->path) || decide_world_tracked(&c->pkt)) {
		outcome = l4_parse(skb, &c->pkt);
		if (!outcome)
			outcome = track_begin(skb);
		else if (!policy_enforced(&c->path))
			outcome = 0;
		if (outcome)
			return refuse_flow(skb, c, outcome);
	}
	return path_follow(skb, c, &c->path, l7_action(&c->path, WIRE_ACTION), HOOK_FROM_WIRE);
}

/* Forwards a wire's packet to a pod that is a client or a backend of Services. */
APART int from_wire_services(struct __sk_buff *skb)
{
	int outcome = service_to_client(skb);

	return outcome == NEXT_CONTINUE ? from_wire_forward(skb) : service_send(skb, outcome);
}

/* Forwards a wire's packet along c->path, whose flags say whether it may be a Service's reply or for the proxy. */
INLINE int from_wire_follow(struct __sk_buff *skb, const struct cpu *c)
{
	int verdict;

	if (config.l7 && c->path.flags & PATH_L7 && (verdict = track_proxied(skb)) != TC_ACT_UNSPEC)
		return verdict;
	return config.services && c->path.flags & PATH_ANSWERS ? from_wire_services(skb) : from_wire_forward(skb);
}

/*
 * Decides where a wire's packet goes: to a pod, a Service or the host. A decision for a pod goes into the forwarding
 * cache. Returns a verdict, or TC_ACT_UNSPEC if the packet must follow c->path, which has flags then. Slow path.
 */
APART int from_wire_decide(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	struct endpoint *e;
	int outcome;

	if (!c)
		return TC_ACT_SHOT;
	e = bpf_map_lookup_elem(&endpoints, &c->pkt.dst);
	if (config.strict_ingress && node_came_plain(skb, c, e))
		return drop(skb, c, DROP_NOT_ENCRYPTED);
	if (packet_family_off(&c->pkt))
		return host_pass(skb, c);
	if (!decide_source(skb, c, e))
		return drop(skb, c, DROP_TUNNEL_SOURCE);
	if (e && e->flags & ENDPOINT_HOST && (outcome = probe_from_wire(skb, c)) != TC_ACT_UNSPEC)
		return outcome;
	if (config.outer_fast && outer_store(skb, c, e))
		return pass(skb, c);
	if (config.services && (!e || e->flags & ENDPOINT_HOST)) {
		outcome = service_from_wire(skb, !!e);
		if (outcome != NEXT_CONTINUE)
			return service_send(skb, outcome);
	}
	if (e && e->flags & ENDPOINT_MASQUERADE)
		return from_wire_host(skb);
	if (!e || e->flags & ENDPOINT_HOST)
		return stack_pass(skb, c, !e);
	decide_wire_pod(c, e);
	if (tunnel_device(skb))
		c->path.via = c->outer;
	if (c->path.flags || !decide_world_tracked(&c->pkt))
		path_store(c, config.wire_any);
	return c->path.flags ? TC_ACT_UNSPEC : from_wire_forward(skb);
}

/* Handles a packet that arrives by a wire, including the tunnel device. */
INLINE int wire_receive(struct __sk_buff *skb)
{
	struct cpu *c = cpu_this();
	bool tagged = skb->vlan_present;
	struct cached_path *p;
	int parsed, verdict;

	if (!c)
		return TC_ACT_SHOT;
	parsed = packet_parse(skb, &c->pkt, HOOK_FROM_WIRE);
	if (unlikely(tagged))
		parsed = vlan_untag(skb);
	if (unlikely(parsed != PARSED_IP))
		return from_wire_non_ip(skb, c, parsed);
	if (unlikely(address_own(&c->pkt.src)))
		return (verdict = probe_from_wire(skb, c)) != TC_ACT_UNSPEC ? verdict : drop(skb, c, DROP_SPOOFED_OWN);
	if (config.wire_extra && (verdict = from_wire_extra(skb, c, tagged)) != TC_ACT_UNSPEC)
		return verdict;
	if (tracking && (verdict = track_from_wire(skb, c, config.wire_any)) != TC_ACT_UNSPEC)
		return verdict;
	p = path_find(&c->pkt, config.wire_any);
	if (unlikely(!p || !path_tunnel_matches(skb, c, &p->path))) {
		verdict = from_wire_decide(skb);
		return verdict == TC_ACT_UNSPEC ? from_wire_follow(skb, c) : verdict;
	}
	if (unlikely(p->path.flags)) {
		c->path = p->path;
		c->pkt.slot = p->path.dst_slot;
		return from_wire_follow(skb, c);
	}
	return path_follow(skb, c, &p->path, WIRE_ACTION, HOOK_FROM_WIRE);
}

SEC("tc")
int from_wire(struct __sk_buff *skb)
{
	int verdict;

	if (config.outer_fast && !tunnel_device(skb) && fast_outer(skb))
		return TC_ACT_OK;
	if (config.wire_fast && fast_receive(skb, HOOK_FROM_WIRE, config.wire_any, &verdict))
		return verdict;
	return wire_receive(skb);
}

/* from_wire for wires without a link-layer header. */
SEC("tc")
int from_wire_l3(struct __sk_buff *skb)
{
	if (!ethernet_carries(skb))
		return TC_ACT_OK;
	return ethernet_push(skb) ? wire_receive(skb) : drop_unpushed(skb, HOOK_FROM_WIRE);
}

/* from_wire for what IPsec has decrypted. */
SEC("tc")
int from_ipsec(struct __sk_buff *skb)
{
	return ipsec_receive(skb) ? wire_receive(skb) : TC_ACT_SHOT;
}

/* Packets that the proxy sends: of its connections with clients and with servers, and DNS messages. */
SEC("tc")
int from_proxy(struct __sk_buff *skb)
{
	return proxy_receive(skb);
}

/* from_proxy for the TUN device. */
SEC("tc")
int from_proxy_l3(struct __sk_buff *skb)
{
	return ethernet_push(skb) ? proxy_receive(skb) : drop_unpushed(skb, HOOK_FROM_PROXY);
}

/* Connections in the proxy's network namespace. */
SEC("sk_lookup")
int proxy_accept(struct bpf_sk_lookup *ctx)
{
	return l7_accept(ctx);
}

/*
 * Packets that the host sends to a pod, and packets to a pod with a limit of its bandwidth. Attached with flow_always,
 * for Services, for policies and for limits.
 */
SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	int verdict = netkit_forwarded(skb) ? TC_ACT_OK : host_deliver(skb);

	return config.bandwidth && verdict == TC_ACT_OK ? bandwidth_deliver(skb) : verdict;
}

/*
 * Handles a packet that leaves by a wire. Attached to the tunnel device, where it sets the destination node; to native
 * ones for legacy masquerading, node encryption, a host with policies or backends, and health checks by DSR.
 */
INLINE int wire_send(struct __sk_buff *skb)
{
	struct cpu *c;
	int outcome, rewritten;

	if ((skb->cb[0] == TUNNEL_KEY_SET && tunnel_device(skb)) || probe_none(skb))
		return TC_ACT_OK;
	c = cpu_this();
	if (!c || packet_parse(skb, &c->pkt, HOOK_TO_WIRE) != PARSED_IP)
		return TC_ACT_OK;
	if (packet_family_off(&c->pkt))
		return config.node_encryption ? node_pass(skb, c, false) : TC_ACT_OK;
	if (config.host_policy && tracking && skb->cb[0] != WIRE_FORWARDED && (outcome = host_enforce(skb, true)))
		return drop(skb, c, outcome);
	if (config.direct && unlikely(probe_marked(skb)) && (outcome = probe_send(skb)) != TC_ACT_UNSPEC)
		return outcome;
	if (tunnel_device(skb))
		return tunnel_send(skb, c);
	outcome = config.services ? service_from_host(skb) : NEXT_CONTINUE;
	rewritten = outcome == NEXT_FORWARD;
	if (outcome == NEXT_CONTINUE)
		outcome = decide_masquerade(c);
	if (!outcome && !rewritten && c->path.flags & PATH_MASQUERADE)
		outcome = nat_out(skb);
	return outcome >= NEXT_DROP ? drop(skb, c, outcome) : node_pass(skb, c, rewritten);
}

SEC("tc")
int to_wire(struct __sk_buff *skb)
{
	return wire_send(skb);
}

/* to_wire for wires without a link-layer header. */
SEC("tc")
int to_wire_l3(struct __sk_buff *skb)
{
	int verdict;

	if (skb->cb[0] == ETHERNET_POPPED || probe_none(skb) || !ethernet_carries(skb))
		return TC_ACT_OK;
	verdict = ethernet_push(skb) ? wire_send(skb) : drop_unpushed(skb, HOOK_TO_WIRE);
	return verdict == TC_ACT_OK ? ethernet_pop(skb) : verdict;
}

/* Drops denylisted sources, and forwards flows of Services with a remote backend. Everything else goes to from_wire. */
SEC("xdp")
int from_wire_xdp(struct xdp_md *ctx)
{
	struct cpu *c = cpu_this();
	int verdict;

	if (!c || (unlikely(xdp_map_ports) && !xdp_port_enter(ctx)))
		return XDP_PASS;
	if (config.prefilter && prefilter_xdp(ctx))
		return XDP_DROP;
	verdict = config.services ? xdp_receive(ctx, c) : XDP_PASS;
	return unlikely(xdp_map_ports) ? xdp_port_leave(ctx, verdict) : verdict;
}

#define SOCKET_HOOK(name, function) \
	SEC("cgroup/" #name) int name(struct bpf_sock_addr *ctx) { return function(ctx); }

/* Translate the peer addresses of sockets. Attached to the cgroup of all pods and the host. */
SOCKET_HOOK(connect4, socket_connect4)
SOCKET_HOOK(connect6, socket_connect6)
SOCKET_HOOK(sendmsg4, socket_connect4)
SOCKET_HOOK(sendmsg6, socket_connect6)
SOCKET_HOOK(recvmsg4, socket_peername4)
SOCKET_HOOK(recvmsg6, socket_peername6)
SOCKET_HOOK(getpeername4, socket_peername4)
SOCKET_HOOK(getpeername6, socket_peername6)

/* Refuse to bind node ports to the host's processes. Attached if bind_protection is on. */
SOCKET_HOOK(bind4, bind_protect4)
SOCKET_HOOK(bind6, bind_protect6)

char _license[] SEC("license") = "Dual BSD/GPL";
