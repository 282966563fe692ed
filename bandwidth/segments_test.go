package bandwidth

import (
	"os"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"myelin/bpf"
	"myelin/endpoint/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Main(m)) }

// A packet takes no longer than 10 ms, unless four segments do.
func TestSegmentsOf(t *testing.T) {
	for limit, want := range map[uint64]int{
		0: 0, 1e3: 4, 1e6: 4, 5e6: 4, 10e6: 8, 50e6: 41, 150e6: 125, 154e6: 0, 2e9: 0, maxRate: 0,
	} {
		if got := segmentsOf(limit); got != want {
			t.Errorf("%d bit/s: %d segments, want %d", limit, got, want)
		}
	}
}

// podSpace is the network namespace of a pod with a link.
//
//	host           pod
//	link ───────── eth0
type podSpace struct {
	sysctls
	Space
	inside *netlink.Handle
}

func newPodSpace(t *testing.T) *podSpace {
	t.Helper()
	nettest.Root(t)
	p := &podSpace{sysctls: newSysctls(t), Space: Space{ID: 2, Name: "a", Path: nettest.NewNS(t)}}
	inside, err := netns.GetFromPath(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	if p.inside, err = netlink.NewHandleAt(inside); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.inside.Close() })
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "link"}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(inside)}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(link) })
	p.Link = link.Index
	err = ns.WithNetNSPath(p.Path, func(ns.NetNS) (err error) {
		p.Cookie, err = bpf.NetnsCookie()
		return err
	})
	if err != nil || p.Cookie == 0 {
		t.Skipf("the kernel has no cookies of network namespaces: %v", err)
	}
	return p
}

// have updates the row, and wants a number of eth0.
func (p *podSpace) have(o *spaceOps, segments, want int) {
	p.Helper()
	p.Segments = segments
	if err := o.Update(p.Context(), nil, 0, &p.Space); err != nil {
		p.Fatal(err)
	}
	link, err := p.inside.LinkByName("eth0")
	if err != nil {
		p.Fatal(err)
	}
	if got := int(link.Attrs().GSOMaxSegs); got != want {
		p.Errorf("eth0 has %d segments, want %d", got, want)
	}
}

// What the pod's device had before comes back with the limit, also by a later agent, and never grows.
func TestSegmentsAreGivenBack(t *testing.T) {
	p, dir := newPodSpace(t), t.TempDir()
	o := p.ops(dir)
	p.have(o, 0, 65535)
	p.have(o, 4, 4)
	p.have(o, 40, 40)
	o = p.ops(dir)
	p.BBR = true
	p.have(o, 4, 4)
	p.BBR = false
	p.have(o, 4, 4)
	p.have(o, 0, 65535)
	if o.originals.has(p.key()) {
		t.Errorf("known: %v", o.originals.All())
	}
	link, err := p.inside.LinkByName("eth0")
	if err == nil {
		err = p.inside.LinkSetGSOMaxSegs(link, 10)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.have(o, 40, 10)
	p.have(o, 4, 4)
	p.have(o, 0, 10)
}

// Another namespace at the pod's path is left alone, and a pod without a link is no error.
func TestSegmentsOfOthers(t *testing.T) {
	p := newPodSpace(t)
	o := p.ops(t.TempDir())
	cookie, link := p.Cookie, p.Link
	p.Cookie++
	p.have(o, 4, 65535)
	p.Cookie, p.Link = cookie, link+1000
	p.have(o, 4, 65535)
	p.Link = link
	p.have(o, 4, 4)
}
