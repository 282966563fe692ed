package endpoint

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/bpf/hooks"
	"myelin/endpoint/nettest"
)

func TestDue(t *testing.T) {
	start := time.Unix(1000, 0)
	row := func(id uint16, state string, interim bool, status reconciler.Status, age time.Duration) *Endpoint {
		return &Endpoint{ID: id, State: state, Interim: interim, Status: status, CreatedAt: start.Add(-age)}
	}
	done, failed := reconciler.StatusDone(), reconciler.StatusError(errors.New("full"))
	for _, tt := range []struct {
		name string
		rows []*Endpoint
		next uint16
		wait time.Duration
	}{
		{"nothing", nil, 0, 0},
		{"lasting", []*Endpoint{row(2, StateReady, false, done, time.Hour)}, 0, 0},
		{"the oldest", []*Endpoint{row(2, StateReady, true, done, 2*time.Second),
			row(3, StateReady, true, done, 3*time.Second)}, 3, 0},
		{"another one is new", []*Endpoint{row(2, StateReady, true, done, 3*time.Second),
			row(3, StateReady, false, done, quiet/4)}, 2, quiet * 3 / 4},
		{"new itself", []*Endpoint{row(2, StateReady, true, done, 0)}, 2, quiet},
		{"the clock went back", []*Endpoint{row(2, StateReady, true, done, -time.Hour)}, 2, quiet},
		{"overdue", []*Endpoint{row(2, StateReady, true, done, overdue), row(3, StateReady, true, done, 0)}, 2, 0},
		{"one is added", []*Endpoint{row(2, StateReady, true, done, time.Hour),
			row(3, StateCreating, false, done, 0)}, 0, 0},
		{"one is removed", []*Endpoint{row(2, StateReady, true, done, time.Hour),
			row(3, StateDeleting, false, done, 0)}, 0, 0},
		{"one at a time", []*Endpoint{row(2, StateReady, true, done, time.Hour),
			row(3, StateReady, true, reconciler.StatusRefreshing(), time.Hour)}, 0, 0},
		{"one failed", []*Endpoint{row(2, StateReady, true, failed, time.Hour), row(3, StateDeleting, false, failed, 0),
			row(4, StateReady, true, done, time.Hour)}, 4, 0},
	} {
		rows := func(yield func(*Endpoint, statedb.Revision) bool) {
			for _, e := range tt.rows {
				if !yield(e, 1) {
					return
				}
			}
		}
		next, wait := due(rows, start)
		if next == nil {
			next = &Endpoint{}
		}
		if next.ID != tt.next || wait != tt.wait {
			t.Errorf("%s: endpoint %d in %v, want %d in %v", tt.name, next.ID, wait, tt.next, tt.wait)
		}
	}
}

// podLink makes a device in the place of a pod's, and the kernel's side of an agent.
func podLink(t *testing.T) (netlink.Link, *Kernel, *Endpoint, string) {
	nettest.Root(t)
	fs := t.TempDir()
	if err := unix.Mount("bpf", fs, "bpf", 0, ""); err != nil {
		t.Fatal("mount bpffs:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(fs, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a := Attachment{ContainerID: t.Name(), IfName: "eth0"}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: linkName(a)}, PeerName: "peer"}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dropLinks(t) })
	link, err := netlink.LinkByName(linkName(a))
	if err != nil {
		t.Fatal(err)
	}
	d, err := bpf.Load(bpf.Options{Dir: filepath.Join(fs, "myelin")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	e := &Endpoint{ID: 2, LinkName: linkName(a), LinkIndex: link.Attrs().Index, State: StateReady}
	return link, &Kernel{Datapath: d, Epochs: &bpf.Epochs{Map: d.Epochs}}, e, filepath.Join(fs, "myelin", "links")
}

// TestAttach follows the programs of a link from their filters to their links,
// by way of a crash.
func TestAttach(t *testing.T) {
	for _, track := range []bool{false, true} {
		t.Run(map[bool]string{false: "from_pod", true: "both"}[track], func(t *testing.T) {
			link, k, e, pins := podLink(t)
			k.Follow = track
			tcx := k.Datapath.Attacher.Mode == bpf.TCX
			want := func(when string, filters, links bool) {
				t.Helper()
				n := 1
				if track {
					n = 2
				}
				ours := attached(t, link)
				if got := count(ours, hooks.ClsactIngress, hooks.ClsactEgress); got != n && filters ||
					got != 0 && !filters {
					t.Errorf("%s: %d filters: %v", when, got, ours)
				}
				if got := count(ours, hooks.TCXIngress, hooks.TCXEgress); got != n && links || got != 0 && !links {
					t.Errorf("%s: %d links: %v", when, got, ours)
				}
				if files, err := os.ReadDir(pins); err != nil || (len(files) > 0) != links {
					t.Errorf("%s: pins %v, %v", when, files, err)
				}
			}
			update := func(when string, interim bool) {
				t.Helper()
				if err := k.Update(context.Background(), nil, 0, e); err != nil || e.Interim != interim {
					t.Fatalf("%s: %v; interim is %t", when, err, e.Interim)
				}
			}
			update("added", tcx)
			want("added", true, false)
			e.Interim = false // a new agent knows nothing of it
			update("restored", tcx)
			want("restored", true, false)
			update("settled", false)
			want("settled", !tcx, tcx)
			keepsQdisc(t, link)
			if tcx {
				besideFilters(t, link, k, func() { update("beside filters", false) })
			}
			update("again", false)
			want("again", !tcx, tcx)
			must(t, k.Delete(context.Background(), nil, 0, e))
			if files, _ := os.ReadDir(pins); len(files) > 0 {
				t.Errorf("pins left: %v", files)
			}
		})
	}
}

// besideFilters updates a link beside which the agent before, that died, has left its filter, and others have theirs.
func besideFilters(t *testing.T, link netlink.Link, k *Kernel, update func()) {
	t.Helper()
	must(t, netlink.FilterReplace(filterOf(link, "myelin-from_pod", 100, k.Datapath.FromPod.FD())))
	must(t, netlink.FilterReplace(filterOf(link, "theirs", 200, k.Datapath.FromPod.FD())))
	update()
	if got := attached(t, link); count(got, hooks.ClsactIngress) != 1 {
		t.Errorf("only the other's filter is to stay: %v", got)
	}
	must(t, netlink.FilterReplace(filterOf(link, "theirs too", 100, k.Datapath.FromPod.FD())))
	update()
	if got := attached(t, link); count(got, hooks.ClsactIngress) != 2 {
		t.Errorf("the others' filters are to stay: %v", got)
	}
	for _, priority := range []uint16{100, 200} {
		must(t, netlink.FilterDel(filterOf(link, "", priority, k.Datapath.FromPod.FD())))
	}
}

// TestReachableLast: a pod whose link can't get programs has no row that leads to it. What it answered would pass by
// them.
func TestReachableLast(t *testing.T) {
	_, k, e, _ := podLink(t)
	e.IPv4, e.IPv6 = netip.MustParseAddr("10.0.1.7"), netip.MustParseAddr("fd00:10:0:1::7")
	rows := func() (n int) {
		for _, a := range e.Addresses() {
			var row bpf.DatapathEndpoint
			if k.Datapath.Endpoints.Lookup(bpf.Addr(a), &row) == nil {
				n++
			}
		}
		return n
	}
	lost := *e
	lost.LinkIndex = 1 << 20
	if err := k.Update(context.Background(), nil, 0, &lost); err == nil {
		t.Error("programs are attached to a link that does not exist")
	}
	if n := rows(); n != 0 {
		t.Errorf("%d addresses lead to a link without programs", n)
	}
	must(t, k.Update(context.Background(), nil, 0, e))
	if n := rows(); n != 2 {
		t.Errorf("%d addresses lead to a link with programs, want 2", n)
	}
}

// TestDeleteInterim: a pod that goes before its link has come leaves nothing.
func TestDeleteInterim(t *testing.T) {
	link, k, e, _ := podLink(t)
	must(t, k.Update(context.Background(), nil, 0, e))
	must(t, k.Delete(context.Background(), nil, 0, e))
	if got := attached(t, link); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// keepsQdisc: taking the qdisc off a device that is up loses what the host sends to it meanwhile.
func keepsQdisc(t *testing.T, link netlink.Link) {
	t.Helper()
	qdiscs, err := netlink.QdiscList(link)
	must(t, err)
	if !slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool {
		return q.Type() == "clsact" || q.Type() == "ingress"
	}) {
		t.Errorf("it was removed: %v", qdiscs)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func filterOf(link netlink.Link, name string, priority uint16, fd int) netlink.Filter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL,
			Priority: priority,
		},
		Fd: fd, Name: name, DirectAction: true,
	}
}

func attached(t *testing.T, link netlink.Link) []hooks.Program {
	t.Helper()
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	defer handle.Close()
	list, err := hooks.List(handle, link)
	must(t, err)
	return list
}

func count(list []hooks.Program, where ...string) (n int) {
	for _, p := range list {
		if slices.Contains(where, p.Where) {
			n++
		}
	}
	return n
}

// TestTrackLater: an agent that wants to_pod comes while one that did not has left its filter. The qdisc below that has
// no egress.
func TestTrackLater(t *testing.T) {
	link, k, e, _ := podLink(t)
	must(t, k.Update(context.Background(), nil, 0, e))
	k.Follow, e.Interim = true, false
	must(t, k.Update(context.Background(), nil, 0, e))
	if got := attached(t, link); count(got, hooks.ClsactIngress) != 1 ||
		count(got, hooks.TCXEgress, hooks.ClsactEgress) != 1 || len(got) != 2 {
		t.Errorf("want from_pod on ingress and to_pod on egress: %v", got)
	}
	k.Datapath.Attacher.Mode = bpf.Clsact // and one that must not use TCX
	must(t, k.Datapath.Attacher.Attach(bpf.ToPod, e.LinkName, e.LinkIndex))
	if got := attached(t, link); count(got, hooks.ClsactEgress) != 1 {
		t.Errorf("to_pod by a filter on egress: %v", got)
	}
}
