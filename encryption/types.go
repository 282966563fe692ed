package encryption

import (
	"golang.org/x/sys/unix"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/config"
	"myelin/encryption/ipsec"
	"myelin/route"
)

// DeviceOf is the name of the device of a type of encryption.
func DeviceOf(by string) string {
	if by == cluster.IPsecType {
		return ipsec.DeviceName
	}
	return DeviceName
}

// byIPsec is the feature with IPsec in the place of WireGuard.
func (f *Feature) byIPsec() *feature.Feature {
	i := &ipsec.Feature{
		Node: f.Node, Routes: f.Routes, Attached: f.Attached, Publish: f.PublishIPsec, Obstacle: f.Obstacle,
		Before:   removeWireGuard,
		Settings: func(s *bpf.Settings) { setDatapath(f.Config, s) },
	}
	parts := i.Feature()
	parts.Checks, parts.Commands, parts.Rights = checks(), commands(), rights()
	return parts
}

// setDatapath sets the constants that all types of encryption have.
func setDatapath(c *config.Config, s *bpf.Settings) {
	o := &c.Encryption
	if !o.Enabled {
		return
	}
	s.Encryption = 1
	s.OuterProto, s.OuterPort = unix.IPPROTO_UDP, port
	if o.UsesIPsec() {
		s.OuterProto, s.OuterPort = unix.IPPROTO_ESP, 0
	}
	if c.TunnelIPv6() {
		s.Outer6 = 1
	}
	if len(o.Strict()) > 0 {
		s.StrictEgress = 1
	}
	if o.StrictIngress {
		s.StrictIngress = 1
	}
	if o.EncryptsNodes() {
		s.NodeEncryption, s.WireguardPort = 1, port
	}
}

// rights are those to publish keys.
func rights() []feature.Right {
	return []feature.Right{{Group: "cilium.io", Resources: []string{"ciliumnodes"}, Verbs: []string{"patch"}}}
}

// removeIPsec removes what an agent with IPsec has left in the kernel.
func removeIPsec() error { return leave(ipsec.Remove) }

// removeWireGuard removes what one with WireGuard has left; a process ends with its device.
func removeWireGuard() error {
	return leave(func(k *route.Kernel) (bool, error) {
		removed, err := Remove(k)
		return len(removed) > 0, err
	})
}

func leave(remove func(*route.Kernel) (bool, error)) error {
	kernel, err := route.OpenKernel(nil)
	if err != nil {
		return err
	}
	defer kernel.Close()
	_, err = remove(kernel)
	return err
}
