package encryption

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"myelin/config"
	"myelin/doctor/check"
)

// The device that encrypts should have the MTU that the least wire leaves it.
func TestCheckMTU(t *testing.T) {
	link := func(name string, mtu int) netlink.Link {
		return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}}
	}
	for name, c := range map[string]struct {
		kind       string // of encryption; empty: off
		configured int
		device     netlink.Link
		want       check.Level
		text       string // empty: nothing is found
	}{
		"as it should be":         {"wireguard", 0, link(DeviceName, 1420), check.OK, "1500 of eth0 - 80"},
		"too large":               {"wireguard", 0, link(DeviceName, 1421), check.Warn, "packets of 1420 fit"},
		"too small":               {"wireguard", 0, link(DeviceName, 1280), check.Warn, "packets of 1420 fit"},
		"while a key is rotated":  {"wireguard", 0, link(RotationDevice, 1500), check.Warn, RotationDevice},
		"of a configured MTU":     {"wireguard", 1400, link(DeviceName, 1320), check.OK, "1400 of MTU - 80"},
		"over what is configured": {"wireguard", 1400, link(DeviceName, 1420), check.Warn, "packets of 1320 fit"},
		"IPsec":                   {"ipsec", 0, link("myelin_ipsec0", 1500), check.Warn, "ipsec0 has an MTU of 1500"},
		"another device":          {"wireguard", 0, link("wg0", 1500), check.OK, ""},
		"off":                     {"", 0, link(DeviceName, 1500), check.OK, ""},
	} {
		cfg := config.Default()
		cfg.MTU, cfg.Encryption.Enabled, cfg.Encryption.Type = c.configured, c.kind != "", c.kind
		m := &check.Machine{Config: cfg, Wires: []netlink.Link{link("eth1", 9000), link("eth0", 1500)},
			Links: []netlink.Link{c.device}}
		checkMTU(m)
		switch {
		case c.text == "" && len(m.Findings) == 0:
		case len(m.Findings) != 1:
			t.Errorf("%s: %d findings", name, len(m.Findings))
		case m.Findings[0].Level != c.want || !strings.Contains(m.Findings[0].What, c.text):
			t.Errorf("%s: %+v", name, m.Findings[0])
		case (c.want == check.Warn) != (m.Findings[0].Do != ""):
			t.Errorf("%s: it says to do %q", name, m.Findings[0].Do)
		}
	}
}
