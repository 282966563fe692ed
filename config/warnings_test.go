package config

import (
	"fmt"
	"slices"
	"testing"

	"myelin/config/key"
)

func TestWarnings(t *testing.T) {
	const quiet = "ipv4NativeRoutingCIDR: 10.0.0.0/8\n"
	for name, tc := range map[string]struct {
		file string
		want []string
	}{
		"many": {
			"underlayProtocol: ipv4\nk8sServiceHost: h\nmyelin.manifests: /m\nmyelin.nat.portRange: 30000-31000",
			[]string{"underlayProtocol", "k8sServiceHost", "myelin.nat.portRange"},
		},
		"node ports elsewhere":   {"nodePort.range: \"32000,32767\"\nmyelin.nat.portRange: 30000-31999", nil},
		"node ports below NAT's": {"nodePort.range: \"20000,21999\"\nmyelin.nat.portRange: 22000-29999", nil},
		"node ports meet NAT's": {"nodePort.range: \"32000,32767\"\nmyelin.nat.portRange: 30000-32000",
			[]string{"myelin.nat.portRange"}},
		"Services": {"socketLB: {enabled: true, hostNamespaceOnly: " +
			"true}\nloadBalancer.serviceTopology: true", nil},
		"Services, not for pods": {"socketLB: {enabled: false, hostNamespaceOnly: true}",
			[]string{"socketLB.hostNamespaceOnly"}},
		"ports of no Service": {"nodePort: {bindProtection: true, enableHealthCheck: true}\nsocketLB: " +
			"{terminatePodConnections: true}",
			[]string{"socketLB.terminatePodConnections", "nodePort.bindProtection", "nodePort.enableHealthCheck"}},
		"ports of Services": {"nodePort: {bindProtection: true, enableHealthCheck: true}\nsocketLB: " +
			"{enabled: true, terminatePodConnections: true}", nil},
		"Services, no hints": {"socketLB.enabled: true\nloadBalancer.serviceTopology: false",
			[]string{"loadBalancer.serviceTopology"}},
		"no Services, no hints": {"loadBalancer.serviceTopology: false", nil},
		"ClusterIPs for the outside": {"socketLB.enabled: true\nbpf: {lbExternalClusterIP: true, " +
			"lbSourceRangeAllTypes: true}", []string{"bpf.lbExternalClusterIP", "bpf.lbSourceRangeAllTypes"}},
		"packets": {"kubeProxyReplacement: true\nbpf: {lbExternalClusterIP: true, " +
			"lbSourceRangeAllTypes: true, lbAlgorithmAnnotation: true}\nloadBalancer: {mode: snat, algorithm: maglev}",
			nil},
		"packets, not the node's": {"nodePort.enabled: true", []string{"nodePort.enabled"}},
		"off and on": {"kubeProxyReplacement: true\nsocketLB.enabled: false\nhostPort.enabled: " +
			"false\nexternalIPs.enabled: true", []string{"socketLB.enabled", "hostPort.enabled"}},
		"a dispatch without DSR": {"kubeProxyReplacement: true\nloadBalancer.dsrDispatch: geneve",
			[]string{"loadBalancer.dsrDispatch"}},
		"a dispatch of annotated Services": {"kubeProxyReplacement: true\nbpf.lbModeAnnotation: " +
			"true\nloadBalancer.dsrDispatch: geneve", nil},
		"left to kube-proxy": {"loadBalancer: {mode: dsr, acceleration: native}\nmyelin.quicConnectionIDs: true",
			[]string{"loadBalancer.mode", "loadBalancer.acceleration", "myelin.quicConnectionIDs"}},
		"what does nothing": {"maglev: {tableSize: 16381, hashSeed: x}\nenableInternalTrafficPolicy: " +
			"true\nnodePort.autoProtectPortRange: true",
			[]string{"nodePort.autoProtectPortRange", "maglev.tableSize", "maglev.hashSeed"}},
	} {
		c, err := Parse([]byte(quiet+tc.file), "f")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var keys []string
		for _, w := range c.Warnings {
			keys = append(keys, w.Key)
		}
		if !slices.Equal(keys, tc.want) {
			t.Errorf("%s: got warnings %v, want %v", name, keys, tc.want)
		}
	}
}

// TestKubeProxyReplacement: one switch turns the others on, and shares the ports out.
func TestKubeProxyReplacement(t *testing.T) {
	for file, want := range map[string]string{
		"":                             "false false false false 10000-29999 0-0",
		"socketLB.enabled: true":       "true false false false 10000-29999 0-0",
		"nodePort.enabled: true":       "false true true true 10000-19999 20000-29999",
		"kubeProxyReplacement: true":   "true true true true 10000-19999 20000-29999",
		`kubeProxyReplacement: "true"`: "true true true true 10000-19999 20000-29999",
		"{kubeProxyReplacement: true, socketLB.enabled: false, " +
			"myelin.nat.portRange: 1024-1280}": "true true true true 1024-1152 1153-1280",
		"{nodePort.enabled: true, externalIPs.enabled: false, " +
			"myelin.nat.portRange: 1024-1279}": "false true true true 1024-1151 1152-1279",
	} {
		c, err := Parse([]byte(file), "f")
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		got := fmt.Sprint(c.SocketLB.Enabled, c.NodePort.Enabled, c.HostPort, c.ExternalIPs, " ", c.MasqueradePorts(),
			" ", c.ClientPorts())
		if got != want {
			t.Errorf("%s: got %s, want %s", file, got, want)
		}
	}
	c, err := Parse([]byte("kubeProxyReplacement: true\nsocketLB.enabled: false"), "f")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(c.Explain(), func(s Setting) bool { return s.Key == "socketLB.enabled" })
	if s := c.Explain()[i]; s.Source != "derived" || s.Value != "true" {
		t.Errorf("got %+v, want true, derived", s)
	}
}

func TestSizes(t *testing.T) {
	parse := func(file string) *Config {
		c, err := Parse([]byte(file), "f")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, tc := range map[string]struct {
		file   string
		memory uint64
		want   Sizes
	}{
		"fixed": {"", 8 << 30, Sizes{Flows: 65536, Paths: 16384}},
		"set": {"bpf: {ctTcpMax: 2048, ctAnyMax: 1024, neighMax: 1024}", 8 << 30,
			Sizes{Flows: 3072, Paths: 1024}},
		"dynamic": {"bpf.mapDynamicSizeRatio: 0.5", (65536*200 + 16384*100) * 4,
			Sizes{Flows: 65536 * 2, Paths: 16384 * 2}},
		"dynamic, one set": {"bpf: {mapDynamicSizeRatio: 0.5, ctTcpMax: 1024}", (65536*200 + 16384*100) * 4,
			Sizes{Flows: 32768 + 1024, Paths: 32768}},
		"dynamic, little memory": {"bpf.mapDynamicSizeRatio: 0.001", 1 << 20, Sizes{Flows: 2048, Paths: 1024}},
		"dynamic, endless memory": {"bpf.mapDynamicSizeRatio: 0.9", 1 << 62,
			Sizes{Flows: key.MaxMapEntries, Paths: key.MaxMapEntries}},
	} {
		if got := parse(tc.file).Sizes(tc.memory, 200, 100); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestFlowLimit(t *testing.T) {
	const memory, entry = 8 << 30, 600
	for file, want := range map[string]int{
		"":                               286331, // 2 % of memory
		"myelin.mapGrowthRatio: 0.5":     7158278,
		"myelin.mapGrowthRatio: 0":       0,
		"bpf.ctTcpMax: 32768":            0, // set, if to the default
		"bpf.ctAnyMax: 4096":             0,
		"bpf.mapDynamicSizeRatio: 0.001": 100000,
	} {
		c, err := Parse([]byte(file), "f")
		if err != nil {
			t.Fatal(err)
		}
		if got, by := c.FlowLimit(memory, 100000, entry); got != want || (by == "") != (want == 0) {
			t.Errorf("%q: %d, want %d", file, got, want)
		}
	}
	if got, _ := Default().FlowLimit(1<<62, 0, entry); got != key.MaxMapEntries {
		t.Errorf("endless memory: %d", got)
	}
}

// TestFlowStart: tables are small at first, on nodes with little memory above all, unless they are to have their
// largest sizes at once.
func TestFlowStart(t *testing.T) {
	for _, tc := range []struct {
		file               string
		limit, flows, want int
	}{
		{"", 1 << 20, 65536, 16384},
		{"", 131072, 65536, 16384},
		{"", 131071, 65536, 8192},
		{"", 10000, 65536, 2048},
		{"", 1 << 20, 2048, 2048},
		{"", 0, 3072, 3072},
		{"bpf.preallocateMaps: true", 1 << 20, 65536, 65536},
		{"myelin.mapGrowthRatio: 0", 0, 65536, 65536},
		{"loadBalancer.standalone: true", 1 << 20, 65536, 65536},
	} {
		c, err := Parse([]byte(tc.file), "f")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.FlowStart(tc.limit, tc.flows); got != tc.want {
			t.Errorf("%q, limit %d: %d, want %d", tc.file, tc.limit, got, tc.want)
		}
	}
}
