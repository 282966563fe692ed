package labtest

import "slices"

// rows are invocations that leave the flows as they are.
func (h *hubbleLab) rows() []invocation {
	return slices.Concat(listRows(), endRows(), packetRows(), verdictRows(), kindRows(), rangeRows(), outputRows(),
		otherRows(), proxyRows(), tlsRows(), serverRows())
}

// all wants flows of all nodes, and conditions that hold for each of them.
func all(args string, every ...string) invocation {
	return invocation{server: "relay", args: "observe --all " + args, every: every}
}

// allFields asks for all fields: those of policies are not among those that the CLI asks for by itself.
const allFields = " --use-default-field-masks=false"

// nothing wants no flow.
func nothing(args string) invocation {
	return invocation{server: "relay", args: "observe --all " + args, lines: none}
}

// listRows are of what is no flow.
func listRows() []invocation {
	return []invocation{
		{server: "node1", args: "status", has: []string{"): Ok", "Current/Max Flows: ", "/4,095 (", "Flows/s: "}},
		{server: "node1", args: "status -o json", has: []string{`"max_flows":"4095"`, `"seen_flows":"`,
			`"uptime_ns":"`}},
		{server: "relay", args: "status", has: []string{"): Ok", "/12,285 (", "Connected Nodes: 3/3"}},
		{server: "relay", args: "list nodes", has: []string{"NAME", "node1   Connected", "node2   Connected",
			"node3   Connected"}, lines: 4},
		{server: "relay", args: "list nodes -o wide", has: []string{"VERSION", "192.168.64.3:4244", "Disabled"},
			lines: 4},
		{server: "relay", args: "list nodes -o json", has: []string{`"state": "NODE_CONNECTED"`,
			`"name": "node2"`, `"max_flows": "4095"`}, hasNot: []string{"UNAVAILABLE"}},
		{server: "node2", args: "list nodes", has: []string{"default/node2   Connected"},
			hasNot: []string{"node1", "node3"}},
		{server: "relay", args: "list namespaces", has: []string{"NAMESPACE\n", "default\n", "shop\n"}, lines: 3},
		{server: "relay", args: "list namespaces -o wide", has: []string{"CLUSTER", "default", "shop"}, lines: 3},
		{server: "node1", args: "list namespaces -o json", has: []string{`"namespace": "shop"`}},
		{server: "node1", args: "observe agent-events --last 100", has: []string{"AGENT_STARTED", "ENDPOINT_CREATED",
			"IPCACHE_UPSERTED", "ENDPOINT_REGENERATE_SUCCESS",
			"pod name: a1)", "POLICY_UPDATED"}},
		{server: "node1", args: "observe agent-events --last 2 -o jsonpb", has: []string{`"node_name":"default/node1"`},
			lines: 2},
		{server: "node1", args: "observe agent-events --last 100 -o dict", has: []string{"TYPE: AGENT_STARTED"}},
		{server: "node1", args: "observe debug-events", lines: none},
		{server: "node1", args: "observe --print-raw-filters --pod a1 --not --verdict DROPPED", has: []string{
			`allowlist:`, `'{"source_pod":["a1"]}'`, `'{"destination_pod":["a1"]}'`, `'{"verdict":["DROPPED"]}'`}},
	}
}

// endRows filter by what the ends of flows are.
func endRows() []invocation {
	const from, to = "flow.source.", "flow.destination."
	return []invocation{
		all("--pod a1", from+"pod_name=a1 | "+to+"pod_name=a1"),
		all("--from-pod default/a1", from+"pod_name=a1"),
		all("--to-pod s2 --from-pod shop/cart", from+"pod_name^=cart-", to+"pod_name=s2"),
		all("--not --pod a1", from+"pod_name!=a1", to+"pod_name!=a1"),
		all("--ip $A2_4", "flow.IP.source=$A2_4 | flow.IP.destination=$A2_4"),
		all("--from-ip $A2_6", "flow.IP.source=$A2_6"),
		all("--to-ip 10.0.2.0/24", "flow.IP.destination^=10.0.2."),
		all("--to-ip fd00:10:0:2::/64", "flow.IP.destination^=fd00:10:0:2:"),
		all("--snat-ip $NODE1_4 --not --pod lookup", "flow.IP.source_xlated=$NODE1_4",
			"flow.source.pod_name=s2 | "+to+"pod_name=s2"),
		all("--snat-ip $NODE1_6 --not --pod lookup", "flow.IP.source_xlated=$NODE1_6",
			"flow.source.pod_name=s2 | "+to+"pod_name=s2"),
		all("-n shop", from+"namespace=shop | "+to+"namespace=shop"),
		all("--namespace shop --not --verdict DROPPED", from+"namespace=shop | "+to+"namespace=shop"),
		all("-A", from+"namespace | "+to+"namespace"),
		all("--from-all-namespaces --type drop", from+"namespace"),
		all("--to-all-namespaces --type drop", to+"namespace"),
		all("--from-namespace shop", from+"namespace=shop"),
		all("--to-namespace default", to+"namespace=default"),
		all("--to-service web", "flow.destination_service.name=web"),
		all("--service default/web", "flow.destination_service.name=web | flow.source_service.name=web"),
		all("--from-service default/web", "flow.source_service.name=web", "flow.is_reply=true"),
		all("--label app=jailed", from+"labels=k8s:app=jailed | "+to+"labels=k8s:app=jailed"),
		all("--from-label reserved:world-ipv4", from+"labels=reserved:world-ipv4", "flow.IP.ipVersion=IPv4"),
		nothing("--to-label app=web,pod-template-hash"),
		all("--identity $ID_A1", from+"identity=$ID_A1 | "+to+"identity=$ID_A1"),
		all("--from-identity $ID_S2", from+"identity=$ID_S2"),
		all("--to-identity $ID_S2", to+"identity=$ID_S2"),
		all("--from-workload cart", from+"workloads.name=cart & "+from+"workloads.kind=Deployment"),
		all("--workload Deployment/cart", from+"workloads.name=cart | "+to+"workloads.name=cart"),
		all("--to-workload Pod/s2", to+"workloads.name=s2"),
		all("--node-name node3", "node_name=default/node3", "flow.node_name=default/node3"),
		all("--node-name default/node*", "node_name^=default/node"),
		all("--node-label zone=east", "flow.node_name=default/node1"),
		all("--cluster default", from+"cluster_name=default | "+to+"cluster_name=default"),
		all("--to-cluster default", to+"cluster_name=default"),
		nothing("--from-cluster elsewhere"),
		nothing("--fqdn *.myelin.test"), // which is asked for without rules by name
	}
}

// packetRows filter by what is in packets.
func packetRows() []invocation {
	const tcp, udp = "flow.l4.TCP.", "flow.l4.UDP."
	return []invocation{
		all("-4", "flow.IP.ipVersion=IPv4"),
		all("-6", "flow.IP.ipVersion=IPv6"),
		all("--ipv6 --to-port 81", "flow.IP.ipVersion=IPv6"),
		nothing("--ip-version none"),
		all("--ipv4 --protocol icmp", "flow.l4.ICMPv4.type=8 | flow.l4.ICMPv4 | flow.l4.ICMPv4.code"),
		all("--ip-version v6 --protocol tcp", "flow.IP.ipVersion=IPv6", tcp+"destination_port"),
		{server: "node1", args: "observe --protocol icmpv6 --from-pod a1 --to-pod a2 --all",
			has: []string{"ICMPv6 EchoRequest", "to-network FORWARDED"}},
		{server: "node2", args: "observe --protocol ICMPv4 --from-pod a1 --to-pod a2 --all",
			has: []string{"ICMPv4 EchoRequest", "to-endpoint FORWARDED"}},
		all("--protocol udp --port 53 --pod a2", udp+"source_port=53 | "+udp+"destination_port=53"),
		all("--protocol udp --to-port 53 --type trace --from-pod a1", udp+"destination_port=53",
			"flow.destination.pod_name=a2"),
		all("--from-port 53 --to-pod a1", udp+"source_port=53", "flow.source.pod_name=a2", "flow.is_reply=true"),
		all("--to-port 8080 --tcp-flags SYN", tcp+"destination_port=8080", tcp+"flags.SYN=true"),
		all("--tcp-flags SYN,ACK", tcp+"flags.SYN=true & "+tcp+"flags.ACK=true"),
		all("--tcp-flags FIN --not --tcp-flags SYN", tcp+"flags.FIN=true", tcp+"flags.SYN!=true"),
		all("--port $PORT", tcp+"source_port=$PORT | "+tcp+"destination_port=$PORT"),
		nothing("--protocol sctp"),
		nothing("--encrypted"),
		all("--unencrypted --to-port 81", tcp+"destination_port=81"),
		nothing("--ip-trace-id 7"),
	}
}

// verdictRows are of what policies and Services do.
func verdictRows() []invocation {
	const drop, isolated, rule = "flow.verdict=DROPPED", "POLICY_DENIED", "POLICY_DENY"
	var rows []invocation
	for _, f := range []string{"-4", "-6"} {
		rows = append(rows,
			all("--verdict DROPPED --to-port 81 --from-pod a1 "+f, drop, "flow.drop_reason_desc="+isolated,
				"flow.traffic_direction=INGRESS", "node_name=default/node2", "flow.destination.pod_name=s2"),
			all("--verdict DROPPED --from-pod jailed --to-pod a2 "+f, drop, "flow.drop_reason_desc="+isolated,
				"flow.traffic_direction=EGRESS", "node_name=default/node1"),
			all("-t policy-verdict --verdict DROPPED --from-pod a1 "+f, drop, "flow.event_type.type=5",
				"flow.drop_reason_desc="+isolated, "flow.l4.TCP.destination_port=81"),
			all("--drop-reason-desc POLICY_DENY "+f, drop, "flow.drop_reason_desc="+rule, "flow.source.namespace=shop",
				"flow.ingress_denied_by.name=no-shop"),
			all("--verdict AUDIT "+f, "flow.verdict=AUDIT", "node_name=default/node3",
				"flow.destination.pod_name=s3", "flow.event_type.type=5"),
			all("--verdict TRANSLATED "+f, "flow.verdict=TRANSLATED", "flow.Type=SOCK", "flow.source.pod_name=a1",
				"flow.destination_service.name=web"),
			all("--type policy-verdict --verdict FORWARDED --to-pod s2 "+f, "flow.ingress_allowed_by.name=closed",
				"flow.policy_match_type=2"),
		)
	}
	return append(rows,
		all("--verdict FORWARDED --to-port 8080 --from-pod a1", "flow.verdict=FORWARDED"),
		all("--not --verdict DROPPED", "flow.verdict!=DROPPED"),
		all("--verdict DROPPED --verdict AUDIT --to-pod s3", "flow.verdict=AUDIT"),
		nothing("--verdict ERROR"),
		all("--drop-reason-desc POLICY_DENIED", "flow.drop_reason_desc="+isolated),
		invocation{server: "node2", args: "observe --verdict DROPPED --to-port 81 -4" + allFields, has: []string{
			"default/a1:", "default/s2:81 (ID:", "policy-verdict:none INGRESS DENIED (TCP Flags: SYN; policy no rule",
			"Policy denied DROPPED (TCP Flags: SYN"}},
		invocation{server: "node2", args: "observe --drop-reason-desc POLICY_DENY --print-policy-names" + allFields,
			has: []string{"shop/cart-5d4f8c7b9-x2x4z:", "Policy denied by denylist DROPPED (TCP Flags: SYN",
				"policy-verdict:L3-L4 INGRESS DENIED BY no-shop (CiliumNetworkPolicy) (TCP Flags: SYN; policy denied"}},
		invocation{server: "node3", args: "observe --verdict AUDIT" + allFields, has: []string{
			"default/s3:7000", "policy-verdict:none INGRESS AUDITED (TCP Flags: SYN"}},
		invocation{server: "node2", args: "observe -t policy-verdict --to-port 8080 --verdict FORWARDED -4" + allFields,
			has: []string{"default/s2:8080", "policy-verdict:L3-L4 INGRESS ALLOWED (TCP Flags: SYN"}},
		invocation{server: "node2", args: "observe -t policy-verdict --port 8080 -4 --print-policy-names" + allFields,
			has: []string{"INGRESS ALLOWED BY closed (NetworkPolicy)"}},
	)
}

// kindRows filter by the kind of event.
func kindRows() []invocation {
	const point = "flow.trace_observation_point="
	return []invocation{
		all("--type drop", "flow.event_type.type=1", "flow.verdict=DROPPED"),
		all("-t trace", "flow.event_type.type=4", "flow.trace_observation_point"),
		all("-t trace:to-endpoint --to-pod s2", point+"TO_ENDPOINT", "node_name=default/node2"),
		all("-t trace:to-network --from-pod a1", point+"TO_NETWORK", "node_name=default/node1"),
		all("-t trace-sock --to-service web", "flow.sock_xlate_point=SOCK_XLATE_POINT_POST_DIRECTION_FWD",
			"flow.socket_cookie"),
		all("-t policy-verdict", "flow.event_type.type=5"),
		nothing("-t capture"),
		nothing("-t trace:to-overlay"),
		all("--traffic-direction ingress --to-pod s2", "flow.traffic_direction=INGRESS"),
		all("--traffic-direction egress --from-pod a1", "flow.traffic_direction=EGRESS"),
		all("--interface eth0", "flow.interface.name=eth0"),
		all("--uuid $UUID", "flow.uuid=$UUID"),
	}
}

// rangeRows limit how many flows there are, and of which time.
func rangeRows() []invocation {
	return []invocation{
		{server: "node1", args: "observe", has: []string{"FORWARDED"}, lines: 20},
		{server: "node1", args: "observe --last 3 --pod a1", has: []string{"default/a1"}, lines: 3},
		{server: "node1", args: "observe --first 2 --pod a1", has: []string{"default/a1"}, lines: 2},
		{server: "node1", args: "observe --since $BEGIN --until $END --pod jailed --to-port 81" + allFields,
			has: []string{"policy-verdict:none EGRESS DENIED"}},
		{server: "node1", args: "observe --until $BEGIN --type trace-sock", lines: none},
		{server: "node1", args: "observe --since 1h --type trace-sock --last 1", lines: 1,
			has: []string{"default/a1"}},
		{server: "node1", args: "observe --first 1 --follow", fails: true, has: []string{"first"}},
	}
}

// outputRows print the same flow in each format.
func outputRows() []invocation {
	one := func(args string, has ...string) invocation {
		return invocation{server: "node1", args: "observe --uuid $UUID " + args, has: has}
	}
	return []invocation{
		one("", "default/a1:$PORT (ID:$ID_A1) -> default/s2:8080 (ID:$ID_S2) to-network FORWARDED (TCP Flags: SYN)\n"),
		one("-o compact --numeric", "$A1_4:$PORT (ID:$ID_A1) -> $S2_4:8080"),
		one("--ip-translation=false", "$A1_4:$PORT", "$S2_4:8080"),
		one("-o compact --print-node-name", " [default/node1]: default/a1:"),
		one("-o compact --time-format RFC3339Nano", "2"),
		one("-o dict", "     SOURCE: default/a1:$PORT\n", "DESTINATION: default/s2:8080\n", "TYPE: to-network\n",
			"VERDICT: FORWARDED\n", "SUMMARY: TCP Flags: SYN\n"),
		one("-o dict --print-node-name", "NODE: default/node1\n"),
		one("-o table", "TIMESTAMP ", "SOURCE ", "DESTINATION ", "TYPE ", "VERDICT ", "SUMMARY\n",
			"default/a1:$PORT   default/s2:8080"),
		one("-o table --print-node-name", "NODE ", "default/node1 "),
		one("-o json", `"uuid":"$UUID"`, `"trace_observation_point":"TO_NETWORK"`, `"is_reply":false`,
			`"node_name":"default/node1"`, `"Summary":"TCP Flags: SYN"`, `"workloads":[{"name":"s2","kind":"Pod"}]`),
		one("--color always", "\x1b["),
		{server: "node1", args: "observe --uuid $UUID -o jsonpb --field-mask uuid,source.pod_name", lines: 1,
			has: []string{`"uuid":"$UUID"`, `"pod_name":"a1"`}, hasNot: []string{"s2", "verdict", "labels"}},
		{server: "node1", args: "observe --uuid $UUID --use-default-field-masks=false", lines: 1,
			has: []string{"default/a1:$PORT (ID:$ID_A1) -> default/s2:8080 (ID:$ID_S2) to-network"}},
		{server: "node1", args: "observe --uuid $UUID -o jsonpb --field-mask nothing", fails: true,
			has: []string{"nothing"}},
		{server: "relay", args: "observe --all --print-node-name --to-port 81 --verdict DROPPED",
			has: []string{"[default/node1]: ", "[default/node2]: "}, hasNot: []string{"[default/node3]: "}},
	}
}

// otherRows have filters as JSON and as CEL expressions, and requests that are refused.
func otherRows() []invocation {
	return []invocation{
		all(`--allowlist {"source_pod":["default/jailed"]}`, "flow.source.pod_name=jailed"),
		all(`--denylist {"verdict":["FORWARDED"]}`, "flow.verdict!=FORWARDED"),
		all("--cel-expression _flow.verdict==Verdict.DROPPED&&_flow.l4.TCP.destination_port==uint(81)",
			"flow.verdict=DROPPED & flow.l4.TCP.destination_port=81"),
		all(`--not --cel-expression _flow.source.namespace!="shop"`, "flow.source.namespace=shop"),
		{server: "node1", args: "observe --cel-expression _flow.nothing", fails: true, has: []string{"nothing"}},
		{server: "node1", args: "observe --from-ip 10.0.0.0/99", fails: true, has: []string{"10.0.0.0/99"}},
		{server: "node1", args: "observe --protocol nothing", fails: true, has: []string{"nothing"}},
		{server: "node1", args: "observe --node-name a/b/c", fails: true, has: []string{"a/b/c"}},
		{server: "node1", args: "observe --last 5 -o nothing", fails: true, has: []string{"nothing"}},
	}
}
