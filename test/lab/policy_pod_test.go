package labtest

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// floodText begins what is sent to pods that may not be reached.
const floodText = "unsolicited traffic"

// flood sends datagrams from each of the places to an address, some 1,000 a second, until the returned function is
// called.
func (p *policed) flood(from []end, to ...netip.Addr) (stop func()) {
	ctx, cancel := context.WithCancel(p.t.Context())
	var wg sync.WaitGroup
	for _, e := range from {
		for _, a := range to {
			c, err := e.listenUDP(ctx, at(map[int]netip.Addr{4: netip.IPv4Unspecified(),
				6: netip.IPv6Unspecified()}[family(a)], 0))
			check(p.t, err)
			wg.Go(func() {
				defer c.Close()
				for ctx.Err() == nil {
					_, _ = c.WriteToUDPAddrPort([]byte(floodText), at(a, 9)) // there is no route yet, or no neighbour
					time.Sleep(time.Millisecond)
				}
			})
		}
	}
	return func() { cancel(); wg.Wait() }
}

// overhear opens a socket in a place that gets every frame of every device, also of those that come later.
func overhear(t *testing.T, e end) *ear {
	t.Helper()
	var fd int
	check(t, e.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
			int(unix.ETH_P_ALL<<8&0xff00|unix.ETH_P_ALL>>8)); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	}))
	t.Cleanup(func() { unix.Close(fd) })
	return &ear{e.Name(), fd}
}

// floodFrames are those of a flood that came in.
func (e *ear) floodFrames() (n int) {
	for _, frame := range e.heard() {
		if bytes.Contains(frame, []byte(floodText)) {
			n++
		}
	}
	return n
}

// podObject is what the API server has of a pod before it has an address.
func podObject(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: churn, uid: %s, labels: {alone: "+
		"\"yes\"}}\nspec: {nodeName: node1, containers: [{name: none, image: none}]}\n", name, name)
}

// TestPolicyNewPod adds pods while a policy forbids everybody to reach them, and others send to their addresses from
// long before: a pod never sees one packet of theirs, from its first moment on. The pod's object comes before the ADD,
// or while it runs. When the policy goes, packets come.
//
//	┌─ node1 ────────────┐  ┌─ node2 ──┐
//	│ a1 ─→✗ new pods ✗←─┼──┼── a2     │
//	└────────────────────┘  └──────────┘
func TestPolicyNewPod(t *testing.T) {
	for _, m := range policyModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			p := upLabelled(t, setup{mode: m})
			r := p.runtime("node1")
			file := p.enforce(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: churn}\n",
				"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: alone, namespace: "+
					"churn}\nspec: {podSelector: {matchLabels: {alone: \"yes\"}}}\n")
			var ears []*ear
			stop := func() {}
			for i := range 6 {
				ear, s, end := p.newPod(t, r, i)
				ears = append(ears, ear)
				t.Cleanup(func() { check(t, s.remove()) })
				if n := ear.floodFrames(); n > 0 {
					end()
					t.Fatalf("pod %d saw %d packets", i, n)
				}
				if i < 5 {
					end()
				}
				stop = end
			}
			defer stop()
			check(t, p.Delete(t.Context(), file))
			last := ears[len(ears)-1]
			eventually(t, "packets come without the policy", 10*time.Second, func() error {
				if last.floodFrames() == 0 {
					return fmt.Errorf("%s hears nothing", last.name)
				}
				return nil
			})
		})
	}
}

// newPod adds a pod under a flood, and returns what it hears.
func (p *policed) newPod(t *testing.T, r *runtimeOf, i int) (*ear, *sandbox, func()) {
	t.Helper()
	s, err := r.create(i)
	check(t, err)
	ear := overhear(t, s.end())
	next := p.nextAddrs()
	stop := p.flood([]end{p.end("a1"), p.end("a2")}, next...)
	object := func() {
		check(t, replaceFile(filepath.Join(p.Manifests(), "status", "churn_"+s.name+".yaml"), podObject(s.name)))
	}
	if i%2 == 0 {
		object()
		p.pass(t)
	} else {
		late := time.AfterFunc(300*time.Millisecond, object)
		defer late.Stop()
	}
	check(t, r.add(t.Context(), s))
	time.Sleep(patience(300 * time.Millisecond))
	for _, a := range s.addrs {
		if !slices.Contains(next, a) {
			t.Errorf("the pod has %v, and the flood is for %v", s.addrs, next)
		}
	}
	contains(t, "endpoint-policies", p.mustCLI("node1", "table", "show", "endpoint-policies", "-f",
		"Pod=churn/"+s.name), "0 rules", "done")
	return ear, s, stop
}

// nextAddrs are what the next pod of node1 gets: addresses are used in turn.
func (p *policed) nextAddrs() []netip.Addr {
	p.t.Helper()
	var last [2]netip.Addr
	for _, word := range strings.Fields(p.mustCLI("node1", "endpoint", "list")) {
		if a, err := netip.ParseAddr(word); err == nil {
			if k := family(a)/2 - 2; k >= 0 && (!last[k&1].IsValid() || last[k&1].Less(a)) {
				last[k&1] = a
			}
		}
	}
	return []netip.Addr{last[0].Next(), last[1].Next()}
}
