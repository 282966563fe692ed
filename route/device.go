package route

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"myelin/endpoint"
)

// PodPrefix begins the name of the host side of every pod's interface.
const PodPrefix = endpoint.LinkPrefix

// Kind says what an interface is to Myelin.
type Kind string

// The kinds of devices.
const (
	Wire       Kind = "wire"       // leads to other nodes
	Tunnel     Kind = "tunnel"     // the device of packets in VXLAN
	Encryption Kind = "encryption" // the device of encryption between nodes: WireGuard's or IPsec's
	Pod        Kind = "pod"        // host side of a pod's interface
	Other      Kind = "other"      // none of our business
)

// Device is a row of the device table: an interface of the node's network
// namespace as the kernel has it now. Rows follow the kernel, so an interface
// that is renamed changes its row and one that is replaced gets a new one.
type Device struct {
	Index     int              `json:"index"`
	Name      string           `json:"name"`
	Kind      Kind             `json:"kind"`
	Why       string           `json:"why,omitempty"` // why it is a wire: the entry of the configuration, or what was detected
	Type      string           `json:"type"`          // as "ip -d link" names it: veth, vxlan, vlan, "device" for plain ones
	Driver    string           `json:"driver,omitempty"`
	MTU       int              `json:"mtu"`
	MAC       net.HardwareAddr `json:"mac,omitempty"`
	Addresses []netip.Prefix   `json:"addresses,omitempty"` // sorted
	Gateways  []netip.Addr     `json:"gateways,omitempty"`  // next hops of default routes of the main table, sorted
	Default4  bool             `json:"default4,omitempty"`  // holds an IPv4 default route of the main table
	Default6  bool             `json:"default6,omitempty"`  // the same for IPv6
	Up        bool             `json:"up"`                  // administratively up
	Carrier   bool             `json:"carrier"`             // operational state is up or unknown
	VLAN      *VLAN            `json:"vlan,omitempty"`      // of a VLAN device
	L3        bool             `json:"l3,omitempty"`        // no link-layer header: WireGuard, IPIP, TUN
	Master    int              `json:"master,omitempty"`    // index of the bridge or bond that it is a port of
	Sizes     Sizes            `json:"sizes"`
	TSOMax    int              `json:"tsoMax,omitempty"` // bytes, the limit of GSO sizes; 0: the kernel has none (before 5.19)
}

// VLAN is what a VLAN device adds to frames, and to which device it gives them.
type VLAN struct {
	ID    uint16 `json:"id"`
	QinQ  bool   `json:"qinq,omitempty"`  // 802.1ad instead of 802.1Q
	Below int    `json:"below,omitempty"` // index; 0 if the device is in another network namespace
}

// Equal reports whether two rows say the same.
func (d *Device) Equal(o *Device) bool {
	return d.Index == o.Index && d.Name == o.Name && d.Kind == o.Kind && d.Why == o.Why && d.Type == o.Type &&
		d.Driver == o.Driver && d.MTU == o.MTU && bytes.Equal(d.MAC, o.MAC) &&
		slices.Equal(d.Addresses, o.Addresses) && slices.Equal(d.Gateways, o.Gateways) &&
		d.Default4 == o.Default4 && d.Default6 == o.Default6 &&
		d.Up == o.Up && d.Carrier == o.Carrier && d.L3 == o.L3 && d.Master == o.Master &&
		d.Sizes == o.Sizes && d.TSOMax == o.TSOMax &&
		(d.VLAN == o.VLAN || d.VLAN != nil && o.VLAN != nil && *d.VLAN == *o.VLAN)
}

// Encrypted reports whether the device encrypts what it transmits.
func (d *Device) Encrypted() bool { return d.Kind == Encryption || d.Type == "wireguard" }

// onLink reports whether address is in a prefix of the device, so that a
// packet to it needs no gateway.
func (d *Device) onLink(address netip.Addr) bool {
	return slices.ContainsFunc(d.Addresses, func(p netip.Prefix) bool {
		return p.Contains(address) && p.Addr() != address
	})
}

// holds reports whether address is one of the device.
func (d *Device) holds(address netip.Addr) bool {
	return slices.ContainsFunc(d.Addresses, func(p netip.Prefix) bool { return p.Addr() == address })
}

// TableHeader names the columns of TableRow.
func (*Device) TableHeader() []string {
	return []string{"Index", "Name", "Kind", "Why", "Type", "Driver", "MTU", "MAC", "Up", "Addresses", "Gateways"}
}

// TableRow is the row as text.
func (d *Device) TableRow() []string {
	return []string{
		fmt.Sprint(d.Index), d.Name, string(d.Kind), d.Why, d.Type, d.Driver, fmt.Sprint(d.MTU), d.MAC.String(),
		fmt.Sprint(d.Up), join(d.Addresses), join(d.Gateways),
	}
}

func join[T fmt.Stringer](values []T) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = v.String()
	}
	return strings.Join(texts, ",")
}

func deviceIndex() statedb.Index[*Device, int] {
	return statedb.Index[*Device, int]{
		Name:       "index",
		FromObject: func(d *Device) index.KeySet { return index.NewKeySet(index.Int(d.Index)) },
		FromKey:    index.Int,
		FromString: index.IntString,
		Unique:     true,
	}
}

func deviceName() statedb.Index[*Device, string] {
	return statedb.Index[*Device, string]{
		Name:       "name",
		FromObject: func(d *Device) index.KeySet { return index.NewKeySet(index.String(d.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
	}
}

// DeviceByIndex queries the device with an interface index.
func DeviceByIndex(i int) statedb.Query[*Device] {
	i_ := deviceIndex()
	return i_.Query(i)
}

// DeviceByName queries the device with a name.
func DeviceByName(name string) statedb.Query[*Device] {
	i := deviceName()
	return i.Query(name)
}

// newDeviceTable makes the table of devices in db.
func newDeviceTable(db *statedb.DB) (statedb.RWTable[*Device], error) {
	return statedb.NewTable(db, "devices", deviceIndex(), deviceName())
}

// selection decides which devices are wires.
type selection struct {
	patterns   []string // of the configuration; empty means detection
	tunnel     string   // name of the tunnel device, or empty
	encryption string   // name of the device that encrypts, or empty
	rotation   string   // name of the one beside it
	ipv4, ipv6 bool
	addresses  []netip.Addr // InternalIPs of this node
}

// classify returns the kind of d, and why if it is a wire.
func (s selection) classify(d *Device) (Kind, string) {
	switch {
	case s.tunnel != "" && d.Name == s.tunnel:
		return Tunnel, ""
	case s.encryption != "" && (d.Name == s.encryption || d.Name == s.rotation):
		return Encryption, ""
	case strings.HasPrefix(d.Name, PodPrefix) && (d.Type == "veth" || d.Type == "netkit"):
		return Pod, ""
	case len(s.patterns) > 0:
		if pattern, ok := matchDevice(s.patterns, d.Name); ok {
			return Wire, "devices: " + pattern
		}
		return Other, ""
	case d.Name == "lo" || d.Master != 0 && d.Type != "vrf":
		return Other, ""
	case s.ipv4 && d.Default4:
		return Wire, "IPv4 default route"
	case s.ipv6 && d.Default6:
		return Wire, "IPv6 default route"
	}
	for _, address := range s.addresses {
		if d.holds(address) {
			return Wire, "InternalIP " + address.String()
		}
	}
	return Other, ""
}

// matchDevice applies the key devices of the configuration, with the meaning
// that it has in Cilium: a name, "eth+" for every name that begins so, and "!"
// in front to exclude. With exclusions only, every other name matches, except
// for the loopback device.
func matchDevice(patterns []string, name string) (pattern string, ok bool) {
	only := true
	for _, p := range patterns {
		exclude := strings.HasPrefix(p, "!")
		prefix, glob := strings.CutSuffix(strings.TrimPrefix(p, "!"), "+")
		hit := name == prefix || glob && strings.HasPrefix(name, prefix)
		switch {
		case exclude && hit:
			return "", false
		case !exclude:
			only = false
			if hit && !ok {
				pattern, ok = p, true
			}
		}
	}
	if only && name != "lo" {
		return strings.Join(patterns, " "), true
	}
	return pattern, ok
}
