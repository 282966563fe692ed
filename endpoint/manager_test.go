package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"

	"myelin/endpoint/nettest"
	"myelin/endpoint/podlink"
	"myelin/ipam"
)

// inside runs ip(8) in a pod's namespace.
func inside(t *testing.T, path string, args ...string) string {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--net=" + path}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v in %s: %v\n%s", args, path, err, out)
	}
	return string(out)
}

// TestAdd looks at what a pod gets with the tools an operator would use.
//
//	host                 pod
//	mye…, no address ─── eth0 10.0.1.2/32 fd00:1::2/128
//	                     default via 10.0.1.1, fd00:1::1 onlink
func TestAdd(t *testing.T) {
	for _, tt := range []struct {
		name, prefixes string
		addrs, routes  []string
		not            []string
	}{
		{
			"dual", "10.0.1.0/24 fd00:1::/64",
			[]string{"inet 10.0.1.2/32", "inet6 fd00:1::2/128", "inet6 fe80::"},
			[]string{"default via 10.0.1.1 onlink mtu 1350", "default via fd00:1::1 metric 1024 onlink mtu 1350"},
			nil,
		},
		{"IPv4", "10.0.1.0/24", []string{"inet 10.0.1.2/32"}, []string{"default via 10.0.1.1 onlink"},
			[]string{"inet6"}},
		{"IPv6", "fd00:1::/64", []string{"inet6 fd00:1::2/128"}, []string{"default via fd00:1::1 metric 1024 onlink"},
			[]string{"inet "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, strings.Fields(tt.prefixes)...)
			a := n.start()
			req := n.request("web")
			e, err := a.Add(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if e.State != StateReady || e.Status.Kind != reconciler.StatusKindDone || e.ID != MinID {
				t.Errorf("row %+v", e)
			}
			addrs := inside(t, req.NetNS, "ip", "addr", "show", "dev", "eth0")
			routes := inside(t, req.NetNS, "ip", "-4", "route", "show", "dev", "eth0") +
				inside(t, req.NetNS, "ip", "-6", "route", "show", "dev", "eth0")
			for _, want := range append(tt.addrs, "mtu 1400", "LOWER_UP", e.PodMAC.String()) {
				if !strings.Contains(addrs, want) {
					t.Errorf("no %q in\n%s", want, addrs)
				}
			}
			for _, want := range tt.routes {
				if !strings.Contains(routes, want) {
					t.Errorf("no %q in\n%s", want, routes)
				}
			}
			for _, absent := range tt.not {
				if strings.Contains(addrs, absent) {
					t.Errorf("%q in\n%s", absent, addrs)
				}
			}
			checkPodSide(t, e)
			checkHostSide(t, e)
			if err := a.Delete(t.Context(), req.attachment()); err != nil {
				t.Fatal(err)
			}
			if err := a.Delete(t.Context(), req.attachment()); err != nil {
				t.Fatal("second delete:", err)
			}
			a.empty()
		})
	}
}

func checkPodSide(t *testing.T, e *Endpoint) {
	t.Helper()
	if lo := inside(t, e.NetNS, "ip", "addr", "show", "dev", "lo"); !strings.Contains(lo, "127.0.0.1/8") {
		t.Errorf("lo has no address:\n%s", lo)
	}
	if !e.IPv6.IsValid() {
		return
	}
	if dad := inside(t, e.NetNS, "cat", "/proc/sys/net/ipv6/conf/eth0/accept_dad"); dad != "0\n" {
		t.Errorf("accept_dad is %s", dad)
	}
	if global := inside(t, e.NetNS, "ip", "-6", "addr", "show", "dev", "eth0", "scope",
		"global"); strings.Contains(global, "tentative") {
		t.Errorf("address can't be used yet:\n%s", global)
	}
	// The kernel lets go of the link-local address a moment after the link is up.
	eventually(t, "link-local address is usable", func() bool {
		return !strings.Contains(inside(t, e.NetNS, "ip", "addr", "show", "dev", "eth0"), "tentative")
	})
}

func checkHostSide(t *testing.T, e *Endpoint) {
	t.Helper()
	// what it says of namespaces that others have removed meanwhile doesn't count
	out, err := exec.Command("ip", "addr", "show", "dev", e.LinkName).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	host := string(out)
	if strings.Contains(host, "inet") || !strings.Contains(host, e.LinkMAC.String()) ||
		!strings.HasPrefix(host, fmt.Sprint(e.LinkIndex, ":")) {
		t.Errorf("host side of %+v:\n%s", e, host)
	}
	for key, want := range map[string]string{"ipv4/conf/%s/forwarding": "1", "ipv4/conf/%s/rp_filter": "0",
		"ipv6/conf/%s/forwarding": "1"} {
		got, err := os.ReadFile("/proc/sys/net/" + fmt.Sprintf(key, e.LinkName))
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q %v, want %s", key, got, err, want)
		}
	}
}

func TestConcurrentAdds(t *testing.T) {
	n := newNode(t, "10.0.0.0/24", "fd00::/64")
	a := n.start()
	reqs := make([]Request, 100)
	for i := range reqs {
		reqs[i] = n.request(fmt.Sprint("pod", i))
	}
	each := func(do func(Request)) time.Duration {
		var wg sync.WaitGroup
		begin := time.Now()
		for _, r := range reqs {
			wg.Go(func() { do(r) })
		}
		wg.Wait()
		return time.Since(begin)
	}
	took := each(func(r Request) {
		if _, err := a.Add(t.Context(), r); err != nil {
			t.Error(err)
		}
	})
	t.Logf("100 concurrent adds took %v", took)
	seen := map[string]bool{}
	for e := range a.table.All(a.db.ReadTxn()) {
		for _, key := range []string{fmt.Sprint(e.ID), e.IPv4.String(), e.IPv6.String(), e.LinkMAC.String(),
			e.PodMAC.String(), fmt.Sprint("index ", e.LinkIndex)} {
			if seen[key] {
				t.Errorf("%s twice", key)
			}
			seen[key] = true
		}
	}
	if len(seen) != 600 || len(links(t)) != 100 || len(n.kernel.ids()) != 100 {
		t.Errorf("%d values, %d links, %d datapath rows", len(seen), len(links(t)), len(n.kernel.ids()))
	}
	took = each(func(r Request) {
		if err := a.Delete(t.Context(), r.attachment()); err != nil {
			t.Error(err)
		}
	})
	t.Logf("100 concurrent deletes took %v", took)
	a.empty()
}

func TestRefusals(t *testing.T) {
	n := newNode(t, "10.0.0.0/30")
	a := n.start()
	req := n.request("first")
	if _, err := a.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	second := n.request("second")
	same := second
	same.NetNS = req.NetNS
	for _, tt := range []struct {
		what string
		req  Request
		want error
	}{
		{"the same attachment", req, ErrExists},
		{"podCIDR full", second, ipam.ErrExhausted},
	} {
		if _, err := a.Add(t.Context(), tt.req); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, err, tt.want)
		}
	}
	if err := a.Delete(t.Context(), req.attachment()); err != nil {
		t.Fatal(err)
	}
	inside(t, req.NetNS, "ip", "link", "add", "eth0", "type", "bridge")
	for _, tt := range []struct {
		what, netns string
		want        error
	}{
		{"interface name taken", same.NetNS, ErrExists},
		{"no such file", "/nonexistent", podlink.ErrNetNS},
		{"no namespace", n.runDir, podlink.ErrNetNS},
		{"the host's own", "/proc/self/ns/net", podlink.ErrNetNS},
	} {
		r := second
		r.NetNS = tt.netns
		if _, err := a.Add(t.Context(), r); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, err, tt.want)
		}
	}
	a.empty()
}

// TestReconcilerRefuses: an error of the datapath is the error of Add.
func TestReconcilerRefuses(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a := n.start()
	n.kernel.setFail(errors.New("map is full"))
	_, err := a.Add(t.Context(), n.request("web"))
	if !errors.Is(err, ErrReconcile) || !strings.Contains(err.Error(), "map is full") {
		t.Errorf("got %v", err)
	}
	a.empty()
}

// TestCancelled: Add rolls back although its context has ended.
func TestCancelled(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	ctx, cancel := context.WithCancel(t.Context())
	n.step = func(step string) error {
		if step == "link" {
			cancel()
		}
		return nil
	}
	a := n.start()
	if _, err := a.Add(ctx, n.request("web")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	a.empty()
}

func TestCheck(t *testing.T) {
	n := newNode(t, "10.0.0.0/24", "fd00::/64")
	a := n.start()
	req := n.request("web")
	if _, err := a.Check(t.Context(), req.attachment()); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if _, err := a.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ damage, want string }{
		{"", ""},
		{"ip route change default via 10.0.0.1 dev eth0 onlink mtu 1200",
			"default route via 10.0.0.1: MTU is 1200, want 1350"},
		{"ip route change default via 10.0.0.1 dev eth0 onlink mtu 1350", ""},
		{"ip -6 route del default", "default route via fd00::1 is missing"},
		{"ip addr del 10.0.0.2/32 dev eth0", "address 10.0.0.2 is missing"},
		{"ip link set eth0 mtu 1300", "MTU is 1300, want 1400"},
		{"ip link set eth0 address 02:00:00:00:00:09", "MAC is 02:00:00:00:00:09"},
		{"ip link set eth0 down", "is down"},
		{"ip link del eth0", "does not exist"},
	} {
		if tt.damage != "" {
			inside(t, req.NetNS, strings.Fields(tt.damage)...)
		}
		_, err := a.Check(t.Context(), req.attachment())
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("after %q: %v, want %q", tt.damage, err, tt.want)
		}
	}
}

// TestNamespaceDies: the kernel's event suffices without DEL.
func TestNamespaceDies(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a := n.start()
	req, other := n.request("dies"), n.request("lives")
	for _, r := range []Request{req, other} {
		if _, err := a.Add(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	nettest.RemoveNS(t, req.NetNS)
	eventually(t, "endpoint is released", func() bool { return len(n.files()) == 1 && a.find(req.attachment()) == nil })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := a.Check(t.Context(), other.attachment()); err != nil {
		t.Error(err)
	}
	nettest.RemoveNS(t, other.NetNS)
	if err := a.Delete(t.Context(), other.attachment()); err != nil {
		t.Error("delete after the namespace is gone:", err)
	}
	a.empty()
}

func TestGC(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a := n.start()
	var all []Attachment
	for i := range 4 {
		req := n.request(fmt.Sprint("pod", i))
		if _, err := a.Add(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		all = append(all, req.attachment())
	}
	if err := a.GC(t.Context(), append(all[1:3:3], Attachment{"unknown", "eth0"})); err != nil {
		t.Fatal(err)
	}
	if ids := n.kernel.ids(); !slices.Equal(ids, []uint16{3, 4}) {
		t.Errorf("kept %v", ids)
	}
	if err := a.GC(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	a.empty()
}

func TestSlots(t *testing.T) {
	clock := time.Unix(1000, 0)
	s := newSlots(func() time.Time { return clock })
	get := func(name string, want uint16) {
		t.Helper()
		if id, err := s.allocate(Attachment{name, "eth0"}); err != nil || id != want {
			t.Errorf("%s got %d %v, want %d", name, id, err, want)
		}
	}
	get("a", 2)
	get("b", 3)
	s.release(Attachment{"a", "eth0"})
	s.release(Attachment{"a", "eth0"})
	clock = clock.Add(slotRest - time.Nanosecond)
	get("c", 4)
	clock = clock.Add(time.Nanosecond)
	get("d", 2)
	for _, id := range []uint16{0, HostID, 4} {
		if err := s.claim(Attachment{"e", "eth0"}, id); err == nil {
			t.Errorf("claimed %d", id)
		}
	}
	for i := 5; i <= MaxID; i++ {
		get(fmt.Sprint(i), uint16(i))
	}
	if _, err := s.allocate(Attachment{"more", "eth0"}); err == nil || !strings.Contains(err.Error(),
		"all 65534 in use") {
		t.Errorf("got %v", err)
	}
}

func TestJSON(t *testing.T) {
	in := `{"id":7,"containerID":"c","ifName":"eth0","netns":"/n","linkName":"mye1","linkIndex":3,` +
		`"ipv4":"10.0.0.2","ipv6":"","mtu":1500,` +
		`"state":"ready","createdAt":"2026-01-02T03:04:05Z",` +
		`"status":{"updated-at":"0001-01-01T00:00:00Z","kind":"Done"},` +
		`"linkMAC":"02:00:00:00:00:01","podMAC":"02:00:00:00:00:02"}`
	var e, back Endpoint
	if err := json.Unmarshal([]byte(in), &e); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(&e)
	if err != nil || string(out) != in {
		t.Errorf("%v\n%s\n%s", err, in, out)
	}
	if err := json.Unmarshal(out, &back); err != nil || !reflect.DeepEqual(e, back) {
		t.Errorf("%v %+v %+v", err, e, back)
	}
	if err := json.Unmarshal([]byte(`{"podMAC":"zz"}`), &back); err == nil {
		t.Error("a bad MAC was accepted")
	}
}
