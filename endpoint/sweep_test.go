package endpoint

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/endpoint/nettest"
)

// hostLinks looks at the host's side of things.
type hostLinks struct {
	*netlink.Handle
	t *testing.T
}

func openHost(t *testing.T) hostLinks {
	t.Helper()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return hostLinks{h, t}
}

// state is "up", "down", or "gone".
func (h hostLinks) state(name string) string {
	h.t.Helper()
	l, err := h.LinkByName(name)
	switch {
	case err != nil:
		return "gone"
	case l.Attrs().Flags&net.FlagUp != 0:
		return "up"
	}
	return "down"
}

func succeed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// restart begins a new life and sweeps; it wants these strays.
func (a *agent) restart(host hostLinks, want ...Stray) *agent {
	a.node.t.Helper()
	a.stop()
	next := a.node.start()
	strays, err := next.Sweep(host.Handle)
	if err != nil || len(strays) != len(want) || len(want) > 0 && strays[0] != want[0] {
		a.node.t.Errorf("strays %+v, %v, want %+v", strays, err, want)
	}
	return next
}

// TestSweep starts an agent that has lost the state files of two of three pods. One of the two has moved its side into
// the host, so that it serves no pod.
//
//	host                    pods
//	known  ──────────────── eth0
//	lost   ──────────────── eth0     the file is gone: set down and reported
//	orphan ── inside                 the file is gone: removed
//	myelin0 ── myelin1               not ours: left alone
func TestSweep(t *testing.T) {
	n := newNode(t, "10.0.0.0/24", "fd00::/64")
	a, host := n.start(), openHost(t)
	rows := map[string]*Endpoint{}
	for _, name := range []string{"known", "lost", "orphan"} {
		e, err := a.Add(t.Context(), n.request(name))
		succeed(t, err)
		rows[name] = e
	}
	inside(t, rows["orphan"].NetNS, "ip", "link", "set", "eth0", "name", "inside", "netns", strconv.Itoa(os.Getpid()))
	succeed(t, host.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "myelin0"}, PeerName: "myelin1"}))
	kept, path := filepath.Join(t.TempDir(), "lost.json"), a.store.path(rows["lost"].ID)
	succeed(t, os.Rename(path, kept))
	succeed(t, os.Remove(a.store.path(rows["orphan"].ID)))

	lost := Stray{Name: rows["lost"].LinkName, Index: rows["lost"].LinkIndex, Pod: true}
	a = a.restart(host, lost)
	for name, want := range map[string]string{
		rows["known"].LinkName: "up", rows["lost"].LinkName: "down", rows["orphan"].LinkName: "gone", "myelin0": "down",
		"inside": "gone",
	} {
		if got := host.state(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	// A Restore that has the file again finds it as it was, and DEL finds it without.
	succeed(t, os.Rename(kept, path))
	a = a.restart(host)
	if got := host.state(lost.Name); got != "up" {
		t.Errorf("the link of a pod whose state is back is %s", got)
	}
	succeed(t, os.Remove(path))
	a = a.restart(host, lost)
	succeed(t, a.Delete(t.Context(), rows["lost"].Attachment()))
	links, err := host.LinkList()
	succeed(t, err)
	if left := a.Strays(links); len(left) != 0 {
		t.Errorf("DEL left %v", left)
	}
}

// TestSweepEndedNamespace: what a namespace leaves for a moment that has ended is no stray any more when it is looked
// at again.
func TestSweepEndedNamespace(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a, req, host := n.start(), n.request("web"), openHost(t)
	e, err := a.Add(t.Context(), req)
	succeed(t, err)
	a.stop()
	succeed(t, os.Remove(a.store.path(e.ID)))
	nettest.RemoveNS(t, req.NetNS)
	a = n.start()
	_, err = a.Sweep(host.Handle)
	succeed(t, err)
	eventually(t, "there are no strays", func() bool {
		links, err := host.LinkList()
		return err == nil && len(a.Strays(links)) == 0
	})
}
