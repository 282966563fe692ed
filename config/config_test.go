package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"myelin/config/key"
)

// refused is a file and what must be said of it: one entry a line, in order.
type refused struct {
	file string
	want []string
}

func TestRefused(t *testing.T) {
	refuse(t, refusedKeys())
	refuse(t, refusedValues())
	refuse(t, contradictory())
}

// refusedKeys are files with an unknown key, a value of the wrong type, or a feature that does not exist yet.
func refusedKeys() map[string]refused {
	return map[string]refused{
		"unknown key, near a known one": {"routingmode: native",
			[]string{"f.yaml: routingmode: unknown key: did you mean routingMode?"}},
		"unknown key, far from all": {"zzzzzzzz: 1", []string{"f.yaml: zzzzzzzz: unknown key"}},
		"unknown nested key": {"bpf: {masqerade: true}",
			[]string{"f.yaml: bpf.masqerade: unknown key: did you mean bpf.masquerade?"}},
		"only the last part": {"hostLegacyRouting: true",
			[]string{"f.yaml: hostLegacyRouting: unknown key: did you mean bpf.hostLegacyRouting?"}},
		"former name": {"tunnel: vxlan",
			[]string{"f.yaml: tunnel: unknown key: its name is now routingMode and tunnelProtocol"}},
		"unknown with null": {"foo:", []string{"f.yaml: foo: unknown key"}},
		"mistyped switch of a feature": {"encryption: {enabeld: true}",
			[]string{"f.yaml: encryption.enabeld: unknown key: did you mean encryption.enabled?"}},
		"two problems, both told": {"MTU: big\ntunnelPort: 0", []string{`f.yaml: MTU: "big" is not a number`,
			"f.yaml: tunnelPort: 0 is not in 1..65535"}},
		"wrong type": {"bpf.masquerade: 1",
			[]string{"f.yaml: bpf.masquerade: 1 is not true or false"}},
		"a value where a map is": {"bpf: true",
			[]string{"f.yaml: bpf: true is not a map of keys to values"}},
		"a map where a value is": {"routingMode: {a: b}",
			[]string{`f.yaml: routingMode: {"a":"b"} is not text`}},
		"wrong word": {"routingMode: tunel",
			[]string{`f.yaml: routingMode: "tunel" is not native or tunnel`}},
		"not yet, value": {"tunnelProtocol: geneve",
			[]string{"f.yaml: tunnelProtocol: not yet: geneve; use vxlan"}},
		"not yet, ipam": {"ipam: {mode: multi-pool}",
			[]string{"f.yaml: ipam.mode: not yet: multi-pool; use kubernetes or cluster-pool"}},
		"not yet, switch": {"egressGateway: {enabled: true}",
			[]string{"f.yaml: egressGateway.enabled: true: not yet: egress gateways"}},
		"IPsec's key elsewhere": {"encryption: {enabled: true, ipsec: {keyFile: ../keys, mountPath: etc}}",
			[]string{`f.yaml: encryption.ipsec.keyFile: "../keys" is not the name of a file`,
				`f.yaml: encryption.ipsec.mountPath: "etc" is not a clean absolute path`}},
		"strict encryption of nothing": {
			"encryption: {enabled: true, type: wireguard, strictMode: {egress: {enabled: true}}}",
			[]string{"f.yaml: encryption.strictMode.egress.cidr: must be set for " +
				"encryption.strictMode.egress.enabled"}},
		"BBR without bandwidth limits": {"bandwidthManager: {bbr: true}",
			[]string{"f.yaml: bandwidthManager.bbr: needs bandwidthManager.enabled: packets wait in its qdiscs"}},
		"strict without encryption": {"encryption: {strictMode: {ingress: {enabled: true}}}",
			[]string{"f.yaml: encryption.strictMode: needs encryption.enabled"}},
		"not yet, switch in a wild subtree": {"bgpControlPlane: {enabled: true, x: {y: 1}}",
			[]string{"f.yaml: bgpControlPlane.enabled: true: not yet: BGP"}},
		"not a switch, quoted": {`kubeProxyReplacement: "strict"`,
			[]string{`f.yaml: kubeProxyReplacement: "strict" is not true or false`}},
		"never": {"installNoConntrackIptablesRules: true",
			[]string{"f.yaml: installNoConntrackIptablesRules: true: refused: no iptables rule is ever written; the " +
				"datapath bypasses netfilter by itself"}},
		"set twice, two ways": {"bpf: {masquerade: true}\nbpf.masquerade: true",
			[]string{"f.yaml: bpf.masquerade: is set twice, nested and as a dotted key"}},
		"set twice, YAML": {"MTU: 1500\nMTU: 1400",
			[]string{`f.yaml: line 2: key "MTU" already set in map`}},
		"not a map": {"- a", []string{"f.yaml: is not a map of keys to values"}},
		"not YAML":  {"a: [", []string{"f.yaml: line 1: did not find expected node content"}},
	}
}

// refusedValues are files with a value outside of its bounds.
func refusedValues() map[string]refused {
	return map[string]refused{
		"family of a CIDR": {"ipv4NativeRoutingCIDR: fd00::/8",
			[]string{"f.yaml: ipv4NativeRoutingCIDR: fd00::/8 is not an IPv4 CIDR"}},
		"host bits of a CIDR": {"ipv4NativeRoutingCIDR: 10.1.0.0/8",
			[]string{
				"f.yaml: ipv4NativeRoutingCIDR: 10.1.0.0/8 has bits set after the prefix: did you mean 10.0.0.0/8?",
			}},
		"map size": {"bpf.ctTcpMax: 1023",
			[]string{"f.yaml: bpf.ctTcpMax: 1023 is not in 1024..16777216"}},
		"map size, huge": {"bpf.ctTcpMax: 99999999999999999999999",
			[]string{`f.yaml: bpf.ctTcpMax: "1e+23" is not a whole number`}},
		"device twice": {"devices: [eth0, eth0]",
			[]string{"f.yaml: devices: eth0 stands twice in the list"}},
		"device name": {"devices: [a/b]",
			[]string{`f.yaml: devices: "a/b" is not a device name, or the beginning of names and a +`}},
		"relative path": {"myelin: {runDir: run}",
			[]string{`f.yaml: myelin.runDir: "run" is not a clean absolute path`}},
		"labels of nodes": {"encryption: {enabled: true, type: wireguard, nodeEncryption: true}\n" +
			"myelin: {nodeEncryptionOptOutLabels: 'a in b'}", []string{"f.yaml: myelin.nodeEncryptionOptOutLabels: " +
			"unable to parse requirement: found 'b' expected: '('"}},
		"port range": {"myelin.nat.portRange: 20000-10000",
			[]string{
				"f.yaml: myelin.nat.portRange: 20000-10000 must begin at 1024 or above and hold at least 256 ports",
			}},
		"node name": {"myelin.nodeName: a_b", nil},
	}
}

// contradictory are files whose keys do not go together.
func contradictory() map[string]refused {
	return map[string]refused{
		"encryption of nodes by IPsec": {"encryption: {enabled: true, type: ipsec, nodeEncryption: true}",
			[]string{"f.yaml: encryption.nodeEncryption: needs encryption.type wireguard: IPsec does not encrypt " +
				"traffic between nodes themselves"}},
		"both families off": {"ipv4.enabled: false",
			[]string{"f.yaml: ipv4.enabled: ipv4.enabled and ipv6.enabled are both false: there is nothing to do"}},
		"tunnel and direct": {"routingMode: tunnel\nautoDirectNodeRoutes: true",
			[]string{"f.yaml: autoDirectNodeRoutes: direct routes to nodes need routingMode native, it is tunnel"}},
		"masquerade by iptables": {"bpf.masquerade: false",
			[]string{"f.yaml: bpf.masquerade: is false while enableIPv4Masquerade is true: masquerading is done by " +
				"BPF only, never by iptables"}},
		"MTU of IPv6": {"MTU: 1200\nipv6.enabled: true",
			[]string{"f.yaml: MTU: 1200 leaves pods 1200 bytes, and IPv6 needs 1280"}},
		"MTU of IPv6 in a tunnel": {"MTU: 1349\nipv6.enabled: true\nroutingMode: tunnel\nunderlayProtocol: ipv6",
			[]string{"f.yaml: MTU: 1349 leaves pods 1279 bytes, and IPv6 needs 1280 (the tunnel takes 70)"}},
		"rate without burst": {"bpf.events.default.rateLimit: 10",
			[]string{"f.yaml: bpf.events.default: rateLimit and burstLimit must both be set, or none of them"}},
		"one port for two": {"prometheus: {enabled: true, port: 9879}",
			[]string{"f.yaml: prometheus.port: 9879 is healthPort too"}},
		"direct device": {"devices: eth+\nnodePort.directRoutingDevice: bond0",
			[]string{"f.yaml: nodePort.directRoutingDevice: bond0 is none of devices eth+"}},
	}
}

func TestRefusedServices(t *testing.T) {
	refuse(t, map[string]refused{
		"not yet, part of a feature": {"hubble: {enabled: true, dropEventEmitter: {enabled: true}}",
			[]string{"f.yaml: hubble.dropEventEmitter.enabled: true: not yet: drops as Kubernetes events"}},
		"range of node ports, a dash": {`nodePort.range: 30000-32767`,
			[]string{`f.yaml: nodePort.range: "30000-32767" is not a range of ports such as "30000,32767"`}},
		"range of node ports, a number": {`nodePort.range: 30000`,
			[]string{`f.yaml: nodePort.range: 30000 is not a range of ports such as "30000,32767"`}},
		"range of node ports, too high": {`nodePort.range: "30000,65536"`,
			[]string{`f.yaml: nodePort.range: "30000,65536" is not a range of ports such as "30000,32767"`}},
		"range of node ports, backwards": {`nodePort.range: "32767,30000"`,
			[]string{"f.yaml: nodePort.range: 32767,30000 must begin at 1 or above, and not end before it begins"}},
		"range of node ports, zero": {`nodePort.range: "0,10"`,
			[]string{"f.yaml: nodePort.range: 0,10 must begin at 1 or above, and not end before it begins"}},
		"map size of Services": {"bpf.lbMapMax: 10",
			[]string{"f.yaml: bpf.lbMapMax: 10 is not in 1024..16777216"}},
		"an unknown mode": {"nodePort.enabled: true\nloadBalancer.mode: direct",
			[]string{`f.yaml: loadBalancer.mode: "direct" is not snat, dsr or hybrid`}},
		"an unknown dispatch": {"nodePort.enabled: true\nloadBalancer.dsrDispatch: gre",
			[]string{`f.yaml: loadBalancer.dsrDispatch: "gre" is not opt, ipip or geneve`}},
		"senders too few": {"myelin.rssIPv6SrcCIDR: fd00::/112",
			[]string{"f.yaml: myelin.rssIPv6SrcCIDR: fd00::/112 must be as long as 64 to 96"}},
		"an unknown acceleration": {"loadBalancer.acceleration: fast",
			[]string{`f.yaml: loadBalancer.acceleration: "fast" is not disabled, native, best-effort or testing-only`}},
		"size of Maglev tables": {"maglev.tableSize: 1000",
			[]string{"f.yaml: maglev.tableSize: 1000 is none of [251 509 1021 2039 4093 8191 16381 32749 65521 " +
				"131071 262139 524287 1048573]"}},
		"size of Maglev tables, text": {"maglev.tableSize: big",
			[]string{`f.yaml: maglev.tableSize: "big" is not a number`}},
		"an unknown algorithm": {"loadBalancer.algorithm: round-robin",
			[]string{`f.yaml: loadBalancer.algorithm: "round-robin" is not random, maglev or least-conn`}},
		"host ports alone": {"hostPort.enabled: true\nexternalIPs.enabled: true", []string{
			"f.yaml: hostPort.enabled: needs kubeProxyReplacement or nodePort.enabled: Services from outside " +
				"are one switch",
			"f.yaml: externalIPs.enabled: needs kubeProxyReplacement or nodePort.enabled: Services from outside " +
				"are one switch",
		}},
		"ports of clients and of nodes": {"nodePort.enabled: true\nmyelin.nat.portRange: " +
			"30000-31999\nnodePort.range: \"31000,32767\"",
			[]string{"f.yaml: myelin.nat.portRange: its upper half 31000-31999, which clients of Services have, " +
				"meets nodePort.range 31000-32767"}},
		"Services, a mistyped key": {"socketLB: {enable: true}",
			[]string{"f.yaml: socketLB.enable: unknown key: did you mean socketLB.enabled?"}},
	})
}

func refuse(t *testing.T, files map[string]refused) {
	t.Helper()
	for name, tc := range files {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tc.file), "f.yaml")
			var ps Problems
			if !errors.As(err, &ps) {
				t.Fatalf("got error %v, want Problems", err)
			}
			if got := strings.Split(err.Error(), "\n"); tc.want != nil && !slices.Equal(got, tc.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tc.want, "\n  "))
			}
		})
	}
}

// A values file as an operator brings it, with parts for the Helm chart and
// features that are off.
const values = `
routingMode: tunnel
tunnelProtocol: vxlan
tunnelPort: 8473
ipv6: {enabled: true}
ipv6NativeRoutingCIDR: fd00::/48
bpf:
  masquerade: true
  events.drop.enabled: false
  ctTcpMax: 4096
  lbMapMax: 131072
  vlanBypass: [0, 100]
  hostLegacyRouting:
devices: [eth0, "bond+"]
nodePort: {directRoutingDevice: eth0, range: "30000, 31999", bindProtection: false, enableHealthCheck: false}
socketLB: {enabled: true, hostNamespaceOnly: true, terminatePodConnections: false, tracing: false}
loadBalancer: {mode: snat, serviceTopology: true}
kubeProxyReplacement: "false"
hostPort: {enabled: false}
encryption: {enabled: false, type: wireguard, ipsec: {keyFile: keys}}
hubble: {enabled: false, relay: {enabled: false, image: {tag: x}}}
image: {repository: example, tag: v1}
operator: {replicas: 1}
resources: {limits: {cpu: 1}}
k8sServicePort: "6443"
myelin: {manifests: cluster, nodeName: n1, nat: {portRange: 20000-20999}}
`

func TestAccepted(t *testing.T) {
	c, err := Parse([]byte(values), "v.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Setting{}
	for _, s := range c.Explain() {
		got[s.Key] = s
	}
	for key, value := range map[string]string{
		"routingMode": "tunnel", "tunnelPort": "8473", "ipv6.enabled": "true", "ipv6NativeRoutingCIDR": "fd00::/48",
		"bpf.events.drop.enabled": "false", "bpf.ctTcpMax": "4096", "bpf.lbMapMax": "131072", "bpf.vlanBypass": "0 100",
		"devices":                      "eth0 bond+",
		"nodePort.directRoutingDevice": "eth0", "k8sServicePort": "6443", "myelin.manifests": "cluster",
		"myelin.nat.portRange": "20000-20999", "myelin.nodeName": "n1",
		"socketLB.enabled": "true", "socketLB.hostNamespaceOnly": "true",
		"socketLB.terminatePodConnections": "false", "nodePort.bindProtection": "false",
		"nodePort.enableHealthCheck": "false", "nodePort.range": "30000,31999", "loadBalancer.serviceTopology": "true",
	} {
		if s := got[key]; s.Value != value || s.Source != "v.yaml" {
			t.Errorf("%s: got %+v, want value %s from v.yaml", key, s, value)
		}
	}
	// A null is the same as nothing.
	if s := got["bpf.hostLegacyRouting"]; s.Source != "default" || s.Value != "false" {
		t.Errorf("bpf.hostLegacyRouting: got %+v, want the default", s)
	}
}

func TestEmptyIsDefault(t *testing.T) {
	for _, file := range []string{"", "{}", "# nothing\n", "bpf: {}"} {
		c, err := Parse([]byte(file), "f")
		if err != nil {
			t.Fatalf("%q: %v", file, err)
		}
		for _, s := range c.Explain() {
			if s.Value != s.Default || s.Source != "default" {
				t.Errorf("%q: %+v is not the default", file, s)
			}
		}
	}
}

// Each setting must give back what its file said, or Explain would lie.
func TestExplainReadsBack(t *testing.T) {
	c, err := Parse([]byte(values), "v.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file strings.Builder
	for _, s := range c.Explain() {
		if s.Source == "v.yaml" && s.Key != "bpf.vlanBypass" {
			file.WriteString(s.Key + ": " + s.Value + "\n")
		}
	}
	again, err := Parse([]byte(file.String()), "v.yaml")
	if err != nil {
		t.Fatalf("%v of\n%s", err, file.String())
	}
	again.BPF.VLANBypass, again.set["bpf.vlanBypass"] = c.BPF.VLANBypass, "v.yaml"
	if !slices.Equal(c.Explain(), again.Explain()) {
		t.Errorf("got %v\nwant %v", again.Explain(), c.Explain())
	}
}

func TestKeysAreUnique(t *testing.T) {
	keys := knownKeys()
	slices.Sort(keys)
	for i := 1; i < len(keys); i++ {
		if keys[i] == keys[i-1] {
			t.Errorf("%s stands twice", keys[i])
		}
	}
}

func TestUnderlayFollowsFamily(t *testing.T) {
	c, err := Parse([]byte("ipv4.enabled: false\nipv6.enabled: true\nroutingMode: tunnel"), "f")
	if err != nil {
		t.Fatal(err)
	}
	if c.UnderlayProtocol != "ipv6" || c.TunnelOverhead() != 70 {
		t.Errorf("got underlay %s, overhead %d; want ipv6, 70", c.UnderlayProtocol, c.TunnelOverhead())
	}
	i := slices.IndexFunc(c.Explain(), func(s Setting) bool { return s.Key == "underlayProtocol" })
	if s := c.Explain()[i]; s.Source != "derived" {
		t.Errorf("got source %s, want derived", s.Source)
	}
	// IPv4 pods over an IPv6 underlay are allowed.
	if _, err := Parse([]byte("routingMode: tunnel\nunderlayProtocol: ipv6"), "f"); err != nil {
		t.Error(err)
	}
}

func TestMatchDevice(t *testing.T) {
	for _, tc := range []struct {
		pattern, name string
		want          bool
	}{{"eth0", "eth0", true}, {"eth0", "eth01", false}, {"eth+", "eth01", true}, {"eth+", "bond0", false},
		{"+", "x", true}} {
		if got := MatchDevice(tc.pattern, tc.name); got != tc.want {
			t.Errorf("%s on %s: got %v", tc.pattern, tc.name, got)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(file, []byte("myelin.manifests: cluster"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "cluster"); c.Myelin.Manifests != want {
		t.Errorf("got manifests %s, want %s", c.Myelin.Manifests, want)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if c.Myelin.NodeName != strings.ToLower(host) {
		t.Errorf("got node %q, want %q", c.Myelin.NodeName, host)
	}
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for a missing file", err)
	}
	if err := os.WriteFile(file, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil || !strings.Contains(err.Error(), "1 MiB") {
		t.Errorf("got %v for a file of more than 1 MiB", err)
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{"", values, "a: &x [*x]", "bpf: {a: {b: c}}", "devices: [1]", "MTU: 1e3", "MTU: -0",
		"? [a]\n: b", "\"a\\nb\": 1", "routingMode: ~"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, "f.yaml")
		if err != nil {
			var ps Problems
			if !errors.As(err, &ps) || len(ps) == 0 || len(ps) != strings.Count(err.Error(), "\n")+1 {
				t.Fatalf("got error %#v, want Problems, one on a line", err)
			}
			return
		}
		// What was accepted keeps the promises of the fields' types.
		if !c.IPv4.Enabled && !c.IPv6.Enabled {
			t.Error("accepted with both families off")
		}
		if c.TunnelPort == 0 || c.Myelin.NATPorts.First < 1024 || c.Myelin.NATPorts.Last < c.Myelin.NATPorts.First {
			t.Errorf("accepted ports out of range: %+v", c)
		}
		if r := c.NodePort.Range; r.First == 0 || r.Last < r.First || c.LoadBalancer.MapMax < key.MinMapEntries ||
			c.LoadBalancer.MapMax > key.MaxMapEntries {
			t.Errorf("accepted Services out of range: %+v, %d", r, c.LoadBalancer.MapMax)
		}
		valid := func(n int) bool { return n >= key.MinMapEntries && n <= key.MaxMapEntries }
		if s := c.Sizes(1<<40, 200, 100); !valid(s.Flows) || !valid(s.Paths) {
			t.Errorf("accepted map sizes out of range: %+v", s)
		}
	})
}
