package bigtcp

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"myelin/endpoint/nettest"
	"myelin/route"
)

// bed is a pod link, and a wire that leads nowhere.
//
//	host           pod
//	link ───────── eth0
//	wire ── far
type bed struct {
	t      *testing.T
	kernel *route.Kernel
	pod    *route.Kernel
	netns  string
	file   string
}

func newBed(t *testing.T) *bed {
	t.Helper()
	nettest.Root(t)
	b := &bed{t: t, netns: nettest.NewNS(t), file: filepath.Join(t.TempDir(), File)}
	var err error
	if b.kernel, err = route.OpenKernel(nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.kernel.Close)
	inside, err := netns.GetFromPath(b.netns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	if b.pod, err = route.OpenKernel(&inside); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.pod.Close)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "link"}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(inside)}
	wire := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire"}, PeerName: "far"}
	for _, l := range []netlink.Link{link, wire} {
		if err := b.kernel.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.kernel.LinkDel(l) })
	}
	if s := b.sizes(b.kernel, "wire"); s.GSO4 == 0 {
		t.Skip("the kernel has no BIG TCP of IPv4 (6.3)")
	}
	return b
}

func (b *bed) sizes(k *route.Kernel, name string) route.Sizes {
	b.t.Helper()
	link, err := k.LinkByName(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return route.SizesOf(link.Attrs())
}

func (b *bed) index(name string) int {
	b.t.Helper()
	link, err := b.kernel.LinkByName(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return link.Attrs().Index
}

// update runs the reconciler as an agent that has just started does.
func (b *bed) update(d *Device) {
	b.t.Helper()
	before, err := openOriginals(b.file)
	if err != nil {
		b.t.Fatal(err)
	}
	d.Status = reconciler.StatusPending()
	o := &ops{b.kernel, before}
	if err := o.Update(b.t.Context(), nil, 0, d); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) want(k *route.Kernel, name string, want route.Sizes) {
	b.t.Helper()
	if got := b.sizes(k, name); got != want {
		b.t.Errorf("%s has %+v, want %+v", name, got, want)
	}
}

func all(size int) route.Sizes { return route.Sizes{GSO6: size, GRO6: size, GSO4: size, GRO4: size} }

// A wire gets back what it had, also from an agent that only finds the file.
func TestWire(t *testing.T) {
	b := newBed(t)
	index := b.index("wire")
	had := route.Sizes{GSO6: 100000, GRO6: 40000, GSO4: 30000, GRO4: 50000}
	if _, err := set(b.kernel.Handle, b.link("wire"), had); err != nil {
		t.Fatal(err)
	}
	b.want(b.kernel, "wire", had)
	b.update(row("wire", index, roleWire, all(largest)))
	b.want(b.kernel, "wire", all(largest))
	b.update(row("wire", index, roleWire, route.Sizes{GSO6: 131072, GRO6: 131072}))
	b.want(b.kernel, "wire", route.Sizes{GSO6: 131072, GRO6: 131072, GSO4: had.GSO4, GRO4: had.GRO4})
	b.update(row("wire", index, roleWire, route.Sizes{}))
	b.want(b.kernel, "wire", had)
	if _, err := os.Stat(b.file); !os.IsNotExist(err) {
		t.Errorf("the file of original sizes is left: %v", err)
	}

	b.update(row("wire", index, roleWire, all(largest)))
	written, err := Restore(b.kernel, b.file)
	if err != nil || len(written) != 1 {
		t.Errorf("restored %q, %v", written, err)
	}
	b.want(b.kernel, "wire", had)
	if written, err := Restore(b.kernel, b.file); err != nil || len(written) > 0 {
		t.Errorf("restored again %q, %v", written, err)
	}
}

// A device that was made anew has sizes of its own, and what is kept of the one before does not count.
func TestWireMadeAnew(t *testing.T) {
	b := newBed(t)
	b.update(row("wire", b.index("wire")+1000, roleWire, all(largest))) // is gone
	b.want(b.kernel, "wire", all(ordinary))
	b.update(row("wire", b.index("wire"), roleWire, all(largest)))
	if err := b.kernel.LinkDel(b.link("wire")); err != nil {
		t.Fatal(err)
	}
	wire := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wire", GSOMaxSize: 50000}, PeerName: "far"}
	if err := b.kernel.LinkAdd(wire); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.kernel.LinkDel(wire) })
	had := b.sizes(b.kernel, "wire")
	b.update(row("wire", b.index("wire"), roleWire, all(largest)))
	b.want(b.kernel, "wire", all(largest))
	b.update(row("wire", b.index("wire"), roleWire, route.Sizes{}))
	b.want(b.kernel, "wire", had)
}

func (b *bed) link(name string) netlink.Link {
	b.t.Helper()
	link, err := b.kernel.LinkByName(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return link
}

// Both ends of a pod link change, also when the pod has renamed its device. A path that leads to another namespace now
// changes nothing there.
func TestPodLink(t *testing.T) {
	b := newBed(t)
	d := row("link", b.index("link"), rolePod, all(largest))
	d.NetNS = b.netns
	b.update(d)
	b.want(b.kernel, "link", all(largest))
	b.want(b.pod, "eth0", all(largest))

	inside, err := b.pod.LinkByName("eth0")
	if err == nil {
		err = b.pod.LinkSetName(inside, "renamed")
	}
	if err != nil {
		t.Fatal(err)
	}
	d.Want = route.Sizes{}
	b.update(d)
	b.want(b.kernel, "link", all(ordinary))
	b.want(b.pod, "renamed", all(ordinary))

	d = row("wire", b.index("wire"), rolePod, all(largest))
	d.NetNS = b.netns // of another pod
	b.update(d)
	b.want(b.kernel, "wire", all(largest))
	b.want(b.pod, "renamed", all(ordinary))
	d.NetNS = filepath.Join(t.TempDir(), "gone")
	b.update(d)
}

func TestFileIsBroken(t *testing.T) {
	file := filepath.Join(t.TempDir(), File)
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openOriginals(file); err == nil {
		t.Error("a broken file is read")
	}
}
