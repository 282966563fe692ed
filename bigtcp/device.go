package bigtcp

import (
	"cmp"
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"myelin/route"
)

// Role is what a device is to BIG TCP.
type Role string

// The roles.
const (
	roleWire   Role = "wire"   // leads to other nodes
	roleTunnel Role = "tunnel" // the tunnel device
	roleLower  Role = "lower"  // a port of a bond, or what is below a VLAN device
	rolePod    Role = "pod"    // a pod link: both ends
)

// Device is a device whose sizes are ours: a wire, or a pod link.
type Device struct {
	Name  string `json:"name"` // in the host's network namespace
	Index int    `json:"index"`
	Role  Role   `json:"role"`
	// Want are the sizes of families with BIG TCP; 0: those that the device had before.
	Want route.Sizes `json:"want"`
	// Pod is "namespace/name", NetNS the path of its network namespace; of pod links.
	Pod    string            `json:"pod,omitempty"`
	NetNS  string            `json:"netns,omitempty"`
	Have   route.Sizes       `json:"have"` // of the host's end, after the last write
	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same; what was found does not count.
func (d *Device) Equal(o *Device) bool {
	return d.Name == o.Name && d.Index == o.Index && d.Role == o.Role && d.Want == o.Want && d.Pod == o.Pod &&
		d.NetNS == o.NetNS
}

// TableHeader names the columns of TableRow.
func (*Device) TableHeader() []string {
	return []string{"Device", "Role", "Pod", "IPv6", "IPv4", "GSO IPv6", "GRO IPv6", "GSO IPv4", "GRO IPv4", "Status"}
}

// TableRow is the row as text.
func (d *Device) TableRow() []string {
	want := func(size int) string {
		if size == 0 {
			return "off"
		}
		return fmt.Sprint(size)
	}
	return []string{
		d.Name, string(d.Role), cmp.Or(d.Pod, "-"), want(d.Want.GRO6), want(d.Want.GRO4), fmt.Sprint(d.Have.GSO6),
		fmt.Sprint(d.Have.GRO6), fmt.Sprint(d.Have.GSO4), fmt.Sprint(d.Have.GRO4), d.Status.String(),
	}
}

func deviceName() statedb.Index[*Device, string] {
	return statedb.Index[*Device, string]{
		Name:       "name",
		FromObject: func(d *Device) index.KeySet { return index.NewKeySet(index.String(d.Name)) },
		FromKey:    index.String, FromString: index.FromString, Unique: true,
	}
}

func deviceByName(name string) statedb.Query[*Device] {
	i := deviceName()
	return i.Query(name)
}

func statusOf(d *Device) *reconciler.Status { return &d.Status }
