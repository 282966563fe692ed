package options

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"myelin/config/key"
	"myelin/service/maglev"
)

// Keys are the keys of the configuration file.
func Keys() []key.Key[Options] {
	return []key.Key[Options]{
		key.BoolText("kubeProxyReplacement", func(o *Options) *bool { return &o.KubeProxyReplacement }),
		key.Boolean("socketLB.enabled", func(o *Options) *bool { return &o.SocketLB.Enabled }),
		key.Boolean("socketLB.hostNamespaceOnly", func(o *Options) *bool { return &o.SocketLB.HostNamespaceOnly }),
		key.Boolean("socketLB.terminatePodConnections", func(o *Options) *bool {
			return &o.SocketLB.TerminatePodConnections
		}),
		key.Boolean("nodePort.enabled", func(o *Options) *bool { return &o.NodePort.Enabled }),
		key.PortPair("nodePort.range", func(o *Options) *key.PortRange { return &o.NodePort.Range }),
		key.CIDRs("nodePort.addresses", func(o *Options) *[]netip.Prefix { return &o.NodePort.Addresses }),
		key.Boolean("nodePort.bindProtection", func(o *Options) *bool { return &o.NodePort.BindProtection }),
		key.Boolean("nodePort.enableHealthCheck", func(o *Options) *bool { return &o.NodePort.EnableHealthCheck }),
		key.Boolean("hostPort.enabled", func(o *Options) *bool { return &o.HostPort }),
		key.Boolean("externalIPs.enabled", func(o *Options) *bool { return &o.ExternalIPs }),
		key.OneOf("serviceNoBackendResponse", func(o *Options) *string {
			return &o.NoBackendResponse
		}, []string{"reject", "drop"}),
		key.OneOf("loadBalancer.mode", func(o *Options) *string {
			return &o.LoadBalancer.Mode
		}, []string{"snat", "dsr", "hybrid"}),
		key.OneOf("loadBalancer.dsrDispatch", func(o *Options) *string {
			return &o.LoadBalancer.DSRDispatch
		}, []string{"opt", "ipip", "geneve"}),
		key.OneOf("loadBalancer.acceleration", func(o *Options) *string {
			return &o.LoadBalancer.Acceleration
		}, []string{"disabled", "native", "best-effort", "testing-only"}),
		key.Boolean("nat46x64Gateway.enabled", func(o *Options) *bool { return &o.NAT46x64Gateway }),
		key.Boolean("bpf.lbModeAnnotation", func(o *Options) *bool { return &o.LoadBalancer.ModeAnnotation }),
		key.Boolean("myelin.quicConnectionIDs", func(o *Options) *bool { return &o.LoadBalancer.QUICConnectionIDs }),
		key.CIDR("myelin.rssIPv4SrcCIDR", func(o *Options) *netip.Prefix {
			return &o.LoadBalancer.RSSIPv4
		}, "IPv4", netip.Addr.Is4),
		key.CIDR("myelin.rssIPv6SrcCIDR", func(o *Options) *netip.Prefix {
			return &o.LoadBalancer.RSSIPv6
		}, "IPv6", netip.Addr.Is6),
		key.OneOf("loadBalancer.algorithm", func(o *Options) *string {
			return &o.LoadBalancer.Algorithm
		}, []string{"random", "maglev", "least-conn"}),
		tableSize("maglev.tableSize", func(o *Options) *int { return &o.Maglev.TableSize }),
		key.Text("maglev.hashSeed", func(o *Options) *string { return &o.Maglev.HashSeed }),
		key.Boolean("loadBalancer.serviceTopology", func(o *Options) *bool { return &o.LoadBalancer.ServiceTopology }),
		key.Boolean("loadBalancer.standalone", func(o *Options) *bool { return &o.LoadBalancer.Standalone }),
		key.MapSize("bpf.lbMapMax", func(o *Options) *int { return &o.LoadBalancer.MapMax }),
		key.Boolean("bpf.lbExternalClusterIP", func(o *Options) *bool { return &o.LoadBalancer.ExternalClusterIP }),
		key.Boolean("bpf.lbSourceRangeAllTypes", func(o *Options) *bool { return &o.LoadBalancer.SourceRangeAllTypes }),
		key.Boolean("bpf.lbAlgorithmAnnotation", func(o *Options) *bool { return &o.LoadBalancer.AlgorithmAnnotation }),
	}
}

// tableSize is the size of Maglev tables, one of a few primes; 0: as needed.
func tableSize(name string, at func(*Options) *int) key.Key[Options] {
	return key.Key[Options]{
		Name: name,
		Set: func(c *Options, v any) error {
			raw, ok := v.(json.Number)
			if !ok {
				return errors.New(key.Show(v) + " is not a number")
			}
			n, err := strconv.Atoi(raw.String())
			if err != nil {
				return fmt.Errorf("%q is not a whole number", raw)
			}
			if err := (maglev.Config{Size: n}).Check(); err != nil {
				return err
			}
			*at(c) = n
			return nil
		},
		Get:    func(c *Options) string { return strconv.Itoa(*at(c)) },
		Schema: key.Schema{"enum": tableSizes()},
	}
}

func tableSizes() []any {
	list := []any{0}
	for _, n := range maglev.Sizes() {
		list = append(list, n)
	}
	return list
}
