package tunnel

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/internal/table"
	"myelin/route"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// namespace makes a network namespace that has no name and ends with the test,
// with a wire eth0 in it.
func namespace(t *testing.T) (*netns.NsHandle, *route.Kernel) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	made, failed := make(chan netns.NsHandle), make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if handle, err := netns.New(); err != nil {
			failed <- err
		} else {
			made <- handle
		}
	}()
	var ns netns.NsHandle
	select {
	case ns = <-made:
	case err := <-failed:
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	kernel, err := route.OpenKernel(&ns)
	must(t, err)
	t.Cleanup(kernel.Close)
	must(t, kernel.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer0"}))
	eth0, err := kernel.LinkByName("eth0")
	must(t, err)
	must(t, kernel.LinkSetUp(eth0))
	return &ns, kernel
}

type agent struct {
	t       *testing.T
	db      *statedb.DB
	tunnels *Tunnels
	stop    func()
}

// start runs routes and tunnels of node n1, whose address is underlay.
func start(t *testing.T, ns *netns.NsHandle, wanted bool, port int, underlay string, mtu int) *agent {
	t.Helper()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	must(t, err)
	endpoints, err := endpoint.NewTable(db)
	must(t, err)
	must(t, db.Start())
	address := netip.MustParseAddr(underlay)
	txn := db.WriteTxn(tables.Nodes)
	_, _, err = tables.Nodes.Insert(txn, &cluster.Node{Name: "n1", Addresses: []netip.Addr{address}})
	must(t, err)
	txn.Commit()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	group, begin, end := table.Group(log)
	config := route.Config{
		Node: "n1", IPv4: true, IPv6: true, Devices: []string{"eth0"}, MTU: mtu, TunnelIPv6: address.Is6(),
	}
	if wanted {
		config.Tunnel = DeviceName
	}
	routes, err := route.New(route.Params{
		DB: db, Log: log, Group: group, Namespace: ns, Config: config, Nodes: tables.Nodes, Endpoints: endpoints,
	})
	must(t, err)
	tunnels, err := New(Params{
		DB: db, Log: log, Group: group, Namespace: ns, Node: "n1", Wanted: wanted, Port: port,
		Devices: routes.Devices, MTU: routes.MTU,
	})
	must(t, err)
	must(t, begin(t.Context()))
	a := &agent{t: t, db: db, tunnels: tunnels}
	stopped := false
	a.stop = func() {
		if !stopped {
			stopped = true
			if err := end(context.Background()); err != nil {
				t.Error(err)
			}
			routes.Close()
			tunnels.Close()
			db.Stop()
		}
	}
	t.Cleanup(a.stop)
	return a
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (a *agent) row() Tunnel {
	row, _, ok := a.tunnels.Table.Get(a.db.ReadTxn(), ByName(DeviceName))
	if !ok {
		return Tunnel{}
	}
	return *row
}

func device(kernel *route.Kernel) *netlink.Vxlan {
	link, err := kernel.LinkByName(DeviceName)
	if err != nil {
		return nil
	}
	vxlan, _ := link.(*netlink.Vxlan)
	return vxlan
}

// settled waits for a device that is as the row wants it.
func (a *agent) settled(kernel *route.Kernel, mtu int) *netlink.Vxlan {
	a.t.Helper()
	var d *netlink.Vxlan
	eventually(a.t, "the device", func() bool {
		d = device(kernel)
		row := a.row()
		return d != nil && d.RawFlags&unix.IFF_UP != 0 && d.MTU == mtu &&
			row.Status.Kind == reconciler.StatusKindDone &&
			row.Index == d.Index
	})
	return d
}

func TestDevice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, underlay string
		mtu            int
	}{
		{"IPv4 underlay", "192.168.7.1", 1500 - 50},
		{"IPv6 underlay", "fd07::1", 1500 - 70},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns, kernel := namespace(t)
			a := start(t, ns, true, 0, c.underlay, 0)
			d := a.settled(kernel, c.mtu)
			if !d.FlowBased || d.Learning || !d.UDP6ZeroCSumRx || !d.UDP6ZeroCSumTx || d.Port != defaultPort {
				t.Errorf("device %+v", d)
			}
			if d.RawFlags&unix.IFF_NOARP == 0 || d.HardwareAddr.String() != macOf("n1").String() {
				t.Errorf("flags %#x, MAC %s, want NOARP and %s", d.RawFlags, d.HardwareAddr, macOf("n1"))
			}
			list, err := kernel.AddrList(d, netlink.FAMILY_V6)
			must(t, err)
			if len(list) != 0 {
				t.Errorf("the device has addresses: %v", list)
			}
		})
	}
}

func TestAdoptReplaceRemove(t *testing.T) {
	t.Parallel()
	ns, kernel := namespace(t)
	a := start(t, ns, true, 8472, "192.168.7.1", 0)
	first := a.settled(kernel, 1450).Index
	a.stop()

	a = start(t, ns, true, 8472, "192.168.7.1", 1400)
	if d := a.settled(kernel, 1350); d.Index != first || a.row().Note != "adopted" {
		t.Errorf("index %d became %d, note %q: a device that fits must be kept", first, d.Index, a.row().Note)
	}
	a.stop()

	a = start(t, ns, true, 4789, "192.168.7.1", 0)
	d := a.settled(kernel, 1450)
	if d.Index == first || d.Port != 4789 || a.row().Note != "replaced: port was 8472, not 4789" {
		t.Errorf("index %d became %d, port %d, note %q", first, d.Index, d.Port, a.row().Note)
	}
	a.stop()

	a = start(t, ns, false, 4789, "192.168.7.1", 0)
	eventually(t, "the device is removed", func() bool {
		return device(kernel) == nil && a.row().Status.Kind == reconciler.StatusKindDone
	})
	if note := a.row().Note; !strings.HasPrefix(note, "removed") {
		t.Errorf("note %q", note)
	}
}

// What other programs do to the device is undone.
func TestPutBack(t *testing.T) {
	t.Parallel()
	ns, kernel := namespace(t)
	a := start(t, ns, true, 0, "192.168.7.1", 0)
	d := a.settled(kernel, 1450)
	must(t, kernel.LinkSetDown(d))
	a.settled(kernel, 1450)
	must(t, kernel.LinkSetMTU(d, 1300))
	a.settled(kernel, 1450)
	must(t, kernel.LinkDel(d))
	if again := a.settled(kernel, 1450); again.Index == d.Index {
		t.Errorf("index %d twice", d.Index)
	}
	eth0, err := kernel.LinkByName("eth0")
	must(t, err)
	must(t, kernel.LinkSetMTU(eth0, 9000))
	a.settled(kernel, 8950)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want string
		mtu        int
		prepare    func(*testing.T, *route.Kernel)
	}{
		{"MTU below the least of IPv6", "IPv6 needs at least 1280", 1300, nil},
		{"device of another program", "there is a device of that name, of type veth", 0,
			func(t *testing.T, k *route.Kernel) {
				must(t, k.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: DeviceName}, PeerName: "peer1"}))
			}},
		{"port in use", "in use", 0, func(t *testing.T, k *route.Kernel) {
			must(t, k.LinkAdd(&netlink.Vxlan{
				LinkAttrs: netlink.LinkAttrs{Name: "other0", Flags: 1}, FlowBased: true, Port: defaultPort,
			}))
			other, err := k.LinkByName("other0")
			must(t, err)
			must(t, k.LinkSetUp(other))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns, kernel := namespace(t)
			if c.prepare != nil {
				c.prepare(t, kernel)
			}
			a := start(t, ns, true, 0, "192.168.7.1", c.mtu)
			var problem string
			eventually(t, "an error", func() bool {
				row := a.row()
				problem = row.Status.GetError()
				return problem != ""
			})
			if !strings.Contains(problem, c.want) {
				t.Errorf("error %q lacks %q", problem, c.want)
			}
		})
	}
}

func TestMAC(t *testing.T) {
	if macOf("n1").String() != macOf("n1").String() || macOf("n1").String() == macOf("n2").String() {
		t.Error("the MAC must follow from the name of the node")
	}
	if b := macOf("n1")[0]; b&1 != 0 || b&2 == 0 {
		t.Errorf("first byte %#x is not that of a local unicast address", b)
	}
}
