package endpoint

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"myelin/bpf"
	"myelin/bpf/hooks"
)

// TestReplaceTogether: where tables were copied to larger ones, programs on devices take the places of those of before
// with TakeOver, and the lasting link of an interim filter comes then; what replaces none is attached at once.
func TestReplaceTogether(t *testing.T) {
	for _, noTCX := range []bool{false, true} {
		t.Run(map[bool]string{false: "links", true: "filters"}[noTCX], func(t *testing.T) {
			link, k, e, pins := podLink(t)
			wire, err := netlink.LinkByName("peer")
			must(t, err)
			index := wire.Attrs().Index
			o := bpf.Options{Dir: filepath.Dir(pins), Settings: bpf.Settings{FlowAlways: 1},
				Sizes: bpf.Sizes{Flows: 4096}, NoTCX: noTCX}
			load := func() *bpf.Datapath {
				t.Helper()
				d, err := bpf.Load(o)
				must(t, err)
				t.Cleanup(func() { d.Close() })
				return d
			}
			k.Datapath = load()
			must(t, k.attach(e))
			must(t, k.Datapath.Attacher.Attach(bpf.FromWire, "peer", index))
			pod, before := ids(t, link), ids(t, wire)
			o.Sizes.Flows = 8192
			k.Datapath = load()
			must(t, k.attach(e))
			must(t, k.Datapath.Attacher.Attach(bpf.FromPod, e.LinkName, e.LinkIndex))
			must(t, k.Datapath.Attacher.Attach(bpf.FromWire, "peer", index))
			must(t, k.Datapath.Attacher.Attach(bpf.ToWire, "peer", index))
			if got := ids(t, link); !slices.Equal(got, pod) {
				t.Errorf("programs of the pod are %v, those of before %v", got, pod)
			}
			if got := ids(t, wire); len(got) != 2 || !slices.Contains(got, before[0]) {
				t.Errorf("programs of the wire are %v, want %v and that of another hook", got, before)
			}
			_, err = k.Datapath.TakeOver()
			must(t, err)
			if got := ids(t, link); len(got) != 1 || got[0] == pod[0] {
				t.Errorf("programs of the pod are %v after TakeOver, those of before %v", got, pod)
			}
			if got := ids(t, wire); len(got) != 2 || slices.Contains(got, before[0]) {
				t.Errorf("programs of the wire are %v after TakeOver, those of before %v", got, before)
			}
			links := count(attached(t, link), hooks.TCXIngress)
			if want := k.Datapath.Attacher.Mode == bpf.TCX; (links == 1) != want {
				t.Errorf("the pod has %d links, want one: %t", links, want)
			}
		})
	}
}

// ids are the programs on a device.
func ids(t *testing.T, link netlink.Link) (list []uint32) {
	t.Helper()
	for _, p := range attached(t, link) {
		list = append(list, p.ID)
	}
	return list
}
