package route

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// device returns the row of a device by name.
func (a *agent) device(name string) *Device {
	row, _, ok := a.Devices.Get(a.DB.ReadTxn(), DeviceByName(name))
	if !ok {
		return &Device{}
	}
	return row
}

func TestDevices(t *testing.T) {
	t.Parallel()
	n1, n2 := twoNodes(t)
	wire(n1, "eth1", n2, "eth1")
	pod := n1.pod("mye00000001", "10.7.1.5")
	a := n1.start(dual("n1"), threeNodes(), pod)
	eventually(t, "eth0 is a wire, for it holds the InternalIP", func() bool {
		d := a.device("eth0")
		return d.Kind == Wire && d.Why == "InternalIP 192.168.7.1" && d.Driver == "veth" && d.Up && d.MTU == 1500
	})
	eventually(t, "the pod link", func() bool { return a.device("mye00000001").Kind == Pod })
	if d := a.device("eth1"); d.Kind != Other {
		t.Errorf("eth1 is %s", d.Kind)
	}
	n1.address("eth1", "192.168.9.1/24")
	n1.defaultVia("eth1", "192.168.9.254")
	eventually(t, "eth1 is a wire, for it holds a default route", func() bool {
		d := a.device("eth1")
		return d.Kind == Wire && d.Why == "IPv4 default route" && join(d.Gateways) == "192.168.9.254"
	})
	n1.down("eth1")
	must(t, n1.kernel.LinkSetName(n1.link("eth1"), "wan0"))
	eventually(t, "the renamed device", func() bool {
		return a.device("wan0").Index != 0 && a.device("eth1").Index == 0
	})
	must(t, n1.kernel.LinkDel(n1.link("wan0")))
	eventually(t, "the device is gone", func() bool { return a.device("wan0").Index == 0 })

	must(t, n1.kernel.LinkDel(n1.link("eth0")))
	eventually(t, "eth0 is gone", func() bool { return a.device("eth0").Index == 0 })
	wire(n1, "eth0", n2, "eth0")
	n1.address("eth0", "192.168.7.1/24")
	n1.want("10.7.2.0/24 via 192.168.7.2 dev eth0 src 192.168.7.1")
}

// A subscription that loses events is replaced, and everything is read again.
func TestResubscribe(t *testing.T) {
	t.Parallel()
	n1 := newNode(t)
	m := newMonitor(slog.New(slog.NewTextHandler(t.Output(), nil)), &n1.namespace)
	m.buffer = 1 << 14
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() { m.run(ctx); close(ended) }()
	eventually(t, "a new subscription asks for everything to be read", func() bool { return m.take().all })
	n1.down("lo")
	eventually(t, "the event", func() bool { return m.take().links[1] })

	m.mu.Lock() // the receiver can't go on, and its socket overflows
	for range 100 {
		n1.up("lo")
		n1.down("lo")
	}
	m.mu.Unlock()
	eventually(t, "everything is read again", func() bool { return m.take().all })
	// The socket may be another one only after that reading: what happens in between is covered by the next.
	eventually(t, "an event of the new subscription", func() bool {
		n1.up("lo")
		n1.down("lo")
		return m.take().links[1]
	})
	cancel()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("the subscription outlives its context")
	}
}
