// Package config reads the agent's configuration file: YAML whose keys are the
// names of Cilium's Helm values wherever the two have something in common, and
// keys under "myelin" for the rest. A file that says something unknown, wrong,
// contradictory or not yet possible is refused as a whole, with all reasons.
package config

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	bandwidth "myelin/bandwidth/options"
	bigtcp "myelin/bigtcp/options"
	"myelin/config/key"
	encryption "myelin/encryption/options"
	event "myelin/event/options"
	hubble "myelin/hubble/options"
	dns "myelin/l7/dns/options"
	l7 "myelin/l7/options"
	prefilter "myelin/policy/prefilter/options"
	gateway "myelin/service/gateway/options"
	service "myelin/service/options"
)

// maxFile bounds the configuration file, in bytes.
const maxFile = 1 << 20

// Config is what the agent runs by. Fields carry the name of their key.
type Config struct {
	RoutingMode          string // "native" or "tunnel"
	TunnelProtocol       string // "vxlan"
	TunnelPort           uint16
	UnderlayProtocol     string // "ipv4" or "ipv6": what carries the tunnel
	AutoDirectNodeRoutes bool
	// DirectRoutingSkipUnreachable leaves out nodes that are on no common
	// segment instead of reporting an error for each.
	DirectRoutingSkipUnreachable bool

	IPv4, IPv6 Family

	BPF BPF

	ServiceOptions
	Events event.Options

	Devices             []string // names, or a prefix and "+"; empty: found by routes
	DirectRoutingDevice string   // key nodePort.directRoutingDevice
	MTU                 int      // of the wire, in bytes; 0: from the device

	CNI CNI

	// IPAMMode is where podCIDRs of nodes come from: "kubernetes", the Node objects;
	// "cluster-pool", the CiliumNodes, which the operator fills from ClusterPool.
	IPAMMode    string
	ClusterPool ClusterPool
	// DefaultLBServiceIPAM is the source of addresses for Services of type LoadBalancer
	// without a class: "lbipam", the operator; "none".
	DefaultLBServiceIPAM string

	// KubeConfigPath is a file that says how to get to an API server; empty: the
	// files of a pod's service account do, unless Myelin.Manifests is set.
	KubeConfigPath string
	// K8sServiceHost and K8sServicePort are where that is, in the place of what
	// the files say.
	K8sServiceHost string
	K8sServicePort uint16

	Prometheus            Prometheus
	HealthPort            uint16 // on loopback; 0: no health server
	Debug                 bool   // key debug.enabled
	ClusterName           string // key cluster.name: a label of all pods
	PolicyEnforcementMode string // "default", "always" or "never"
	Policy                Policy
	Bandwidth             bandwidth.Options
	Encryption            encryption.Options
	BigTCP                bigtcp.Options
	Prefilter             prefilter.Options
	L7                    l7.Options
	DNS                   dns.Options
	Hubble                hubble.Options

	Myelin Myelin

	// Warnings say what was accepted but has less effect than its writer may
	// expect.
	Warnings Problems

	set     map[string]string // key → file that set it
	ignored []string          // keys that only others could act on
}

// ServiceOptions are the configuration of Services.
type ServiceOptions = service.Options

// Family is the configuration of IPv4 or of IPv6.
type Family struct {
	Enabled bool
	// NativeRoutingCIDR is what the network routes without masquerading; the
	// zero Prefix where unset.
	NativeRoutingCIDR netip.Prefix
	Masquerade        bool // key enableIPv4Masquerade, enableIPv6Masquerade
}

// BPF is the part of the configuration that the datapath is loaded with.
type BPF struct {
	Masquerade          bool
	HostLegacyRouting   bool
	DatapathMode        string  // "veth", "netkit", "netkit-l2" or "auto"
	EnableTCX           bool    // false: clsact also where the kernel has TCX
	PreallocateMaps     bool    // maps have their largest sizes at once
	DistributedLRU      bool    // LRU maps have a list for each CPU
	MapDynamicSizeRatio float64 // share of the memory that maps may grow to; 0: fixed limits
	CtTCPMax            int
	CtAnyMax            int
	NatMax              int // accepted; a translated flow is one record
	NeighMax            int
	VLANBypass          []uint16 // VLAN ids that pass untouched; 0: all
}

// CNI says where the container runtime looks for plugins.
type CNI struct {
	ConfPath, BinPath string
	Exclusive         bool // put other networks' configurations aside
}

// Myelin holds what Cilium has no name for.
type Myelin struct {
	Manifests  string // directory of Kubernetes YAML
	NodeName   string // Load fills in the host name
	RunDir     string
	BPFRoot    string // a mounted bpffs
	CgroupRoot string // a mounted cgroup2; empty: found in /proc/mounts
	SysctlRoot string // "/proc/sys", or where it can be written in a container
	// FlowTracking is "auto" (rows only where state is needed) or "always".
	FlowTracking string
	NATPorts     key.PortRange // key myelin.nat.portRange
	// MapGrowthRatio is the share of the memory that conntrack tables may grow to; 0: they do not grow.
	MapGrowthRatio float64
	NewFlowRate    int    // of flows that need no NAT entry and get one, per second and CPU; 0: automatic
	LogFormat      string // "text" or "json"
	// ReportPolicies has the agent write into its CiliumNode which policies it has.
	ReportPolicies bool // key myelin.policy.report
	Gateway        gateway.Options
}

// Default is the configuration of an empty file. It differs from Cilium's
// defaults in: routingMode native, ipam.mode kubernetes, bpf.masquerade true,
// kubeProxyReplacement off, loadBalancer.serviceTopology true, and in maps that
// are small at first.
func Default() *Config {
	return &Config{
		RoutingMode:      "native",
		TunnelProtocol:   "vxlan",
		TunnelPort:       8472,
		UnderlayProtocol: "ipv4",
		IPv4:             Family{Enabled: true, Masquerade: true},
		IPv6:             Family{Enabled: false, Masquerade: true},
		BPF: BPF{
			Masquerade: true, DatapathMode: "veth", EnableTCX: true,
			CtTCPMax: 49152, CtAnyMax: 16384, NatMax: 65536, NeighMax: 16384,
		},
		ServiceOptions: service.Default(),
		CNI:            CNI{ConfPath: "/etc/cni/net.d", BinPath: "/opt/cni/bin", Exclusive: true},
		IPAMMode:       "kubernetes", DefaultLBServiceIPAM: "lbipam",
		ClusterPool: ClusterPool{
			IPv4: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10}), 8)}, IPv4Bits: 24,
			IPv6: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd}), 104)}, IPv6Bits: 120,
		},
		Prometheus: Prometheus{Port: 9962}, HealthPort: 9879,
		ClusterName: "default", PolicyEnforcementMode: "default",
		Policy: Policy{Lockdown: true, MapMax: 65536, PeersMax: 65536, DeniedFlows: "reset"},
		L7:     l7.Default(), DNS: dns.Default(), Hubble: hubble.Default(),
		Events: event.Default(), Encryption: encryption.Default(),
		Myelin: Myelin{
			RunDir: "/run/myelin", BPFRoot: "/sys/fs/bpf", SysctlRoot: "/proc/sys", FlowTracking: "auto",
			LogFormat: "text", NATPorts: key.PortRange{First: 10000, Last: 29999}, MapGrowthRatio: 0.02,
			ReportPolicies: true,
			Gateway:        gateway.Default(),
		},
		set: map[string]string{},
	}
}

// Load reads the file at path, resolves a relative myelin.manifests against
// the file's directory, and takes the host name where no node name is set. An
// empty path means the defaults. Flags take the place of what the file says. The error is
// Problems where the content is at fault.
func Load(path string, flags ...Flag) (*Config, error) {
	c, name := Default(), path
	if path != "" || flagList(flags).given() {
		var data []byte
		var err error
		if path == "" {
			name = "the defaults"
		} else if data, err = read(path); err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		if c, err = parse(data, name, flags); err != nil {
			return nil, err
		}
		if m := c.Myelin.Manifests; m != "" && !filepath.IsAbs(m) {
			c.Myelin.Manifests = filepath.Join(filepath.Dir(path), m)
		}
	}
	if c.Myelin.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("find the host name for myelin.nodeName: %w", err)
		}
		c.Myelin.NodeName = strings.ToLower(host)
	}
	return c, nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, errors.New(path + ": longer than 1 MiB")
	}
	return data, nil
}

// Parse reads a configuration; name stands for the file in messages. The error
// is Problems and holds everything that is wrong.
func Parse(data []byte, name string) (*Config, error) { return parse(data, name, nil) }

func parse(data []byte, name string, flags flagList) (*Config, error) {
	c := Default()
	values, problems := flatten(data, name)
	known := map[string]setting{}
	for _, s := range settings() {
		known[s.Name] = s
	}
	for _, v := range values {
		s, ok := known[v.key]
		if !ok {
			if err := later(v); err != nil {
				problems = append(problems, Problem{File: name, Key: v.key, Reason: err.Error()})
			}
			c.warnIdle(v, name)
			continue
		}
		if err := s.Set(c, v.value); err != nil {
			problems = append(problems, Problem{File: name, Key: v.key, Reason: err.Error()})
			continue
		}
		c.set[v.key] = name
	}
	problems = append(problems, c.flags(flags)...)
	c.derive(name)
	problems = append(problems, c.contradictions(name)...)
	if len(problems) > 0 {
		return nil, problems
	}
	c.Warnings = append(c.Warnings, c.warnings(name)...)
	return c, nil
}

// derive fills in defaults that depend on other values.
func (c *Config) derive(name string) {
	c.deriveServices(name)
	if !c.isSet("underlayProtocol") && !c.IPv4.Enabled {
		c.UnderlayProtocol = "ipv6"
	}
}

func (c *Config) isSet(key string) bool { return c.set[key] != "" }

// Problem is one thing that is wrong in a file.
type Problem struct {
	File   string `json:"file"`
	Key    string `json:"key,omitempty"`
	Reason string `json:"reason"`
}

// Error is "FILE: KEY: reason".
func (p Problem) Error() string {
	if p.Key == "" {
		return p.File + ": " + p.Reason
	}
	return p.File + ": " + p.Key + ": " + p.Reason
}

// Problems are all that is wrong in a file.
type Problems []Problem

// Error has one problem a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}
