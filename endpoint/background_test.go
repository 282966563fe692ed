package endpoint

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"myelin/bpf"
)

// held is a step of Delete that waits to be let go.
type held struct {
	at      string
	reached chan struct{}
	letGo   chan struct{}
	once    sync.Once
}

func holdAt(step string) *held {
	return &held{at: step, reached: make(chan struct{}), letGo: make(chan struct{})}
}

func (h *held) step(s string) error {
	if s == h.at {
		h.once.Do(func() { close(h.reached) })
		<-h.letGo
	}
	return nil
}

// TestDeleteAsync: DEL is answered when the datapath has forgotten the pod, and
// address and slot are not reused before the link is gone.
func TestDeleteAsync(t *testing.T) {
	n := newNode(t, "10.0.0.0/24", "fd00::/64")
	h := holdAt("unlink")
	n.step = h.step
	a, req := n.start(), n.request("web")
	e, err := a.Add(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.DeleteAsync(t.Context(), req.attachment()); err != nil {
		t.Fatal(err)
	}
	if ids := n.kernel.ids(); len(ids) != 0 {
		t.Errorf("DEL is answered, and the datapath has %v", ids)
	}
	state, err := os.ReadFile(filepath.Join(n.runDir, "endpoints", "2.json"))
	if err != nil || !strings.Contains(string(state), `"deleting"`) {
		t.Errorf("DEL is answered, and the state is %s %v", state, err)
	}
	<-h.reached
	if a.ipam.Claim("another pod", e.IPv4) == nil {
		t.Error("the address of a pod that is being deleted was free")
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	again := req
	again.ContainerID += "-again"
	if _, err := a.Add(short, again); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ADD to the same interface did not wait for the end of the one before: %v", err)
	}
	close(h.letGo)
	if err := a.Delete(t.Context(), req.attachment()); err != nil { // waits for the first
		t.Error(err)
	}
	a.empty()
	if _, err := a.Add(t.Context(), again); err != nil {
		t.Errorf("ADD to the same interface: %v", err)
	}
}

// TestDeleteAsyncCrash ends the agent after DEL was answered. The next one
// finishes the deletion, and nothing is lost.
func TestDeleteAsyncCrash(t *testing.T) {
	for _, step := range []string{"unlink", "unrow", "unfile"} {
		t.Run(step, func(t *testing.T) {
			n := newNode(t, "10.0.0.0/24", "fd00::/64")
			h := holdAt(step)
			n.step = h.step
			a, req := n.start(), n.request("web")
			if _, err := a.Add(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			if err := a.DeleteAsync(t.Context(), req.attachment()); err != nil {
				t.Fatal(err)
			}
			<-h.reached
			n.step = nil
			next := n.start() // the first one still hangs in the step, and does nothing more
			next.empty()
			close(h.letGo)
			a.Close()
		})
	}
}

// TestDeleteAsyncClose: a graceful stop leaves what has not begun to the next agent.
func TestDeleteAsyncClose(t *testing.T) {
	n := newNode(t, "10.0.0.0/24", "fd00::/64")
	h := holdAt("unlink")
	n.step = h.step
	a := n.start()
	for i := range atOnce + 2 {
		req := n.request("pod" + string(rune('a'+i)))
		if _, err := a.Add(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if err := a.DeleteAsync(t.Context(), req.attachment()); err != nil {
			t.Fatal(err)
		}
	}
	<-h.reached
	closed := make(chan struct{})
	go func() { a.Close(); close(closed) }()
	<-a.background.closing.Done()
	eventually(t, "what runs holds all turns", func() bool { return len(a.background.turns) == atOnce })
	select {
	case <-closed:
		t.Error("Close did not wait for deletions that run")
	default:
	}
	close(h.letGo)
	<-closed
	if left := n.files(); len(left) != 2 {
		t.Errorf("files: %v, want the two that had not begun", left)
	}
	// From now on nothing is put off.
	req := n.request("late")
	if _, err := a.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if err := a.DeleteAsync(t.Context(), req.attachment()); err != nil || a.find(req.attachment()) != nil {
		t.Errorf("DEL after Close: %v, %v", err, a.find(req.attachment()))
	}
	a.stop()
	n.step = nil
	n.start().empty()
}

// TestDeleteAsyncRetry: an answered DEL comes to its end, also where the first attempt fails.
func TestDeleteAsyncRetry(t *testing.T) {
	for _, step := range []string{"unlink", "unrow", "unfile"} {
		t.Run(step, func(t *testing.T) {
			n := newNode(t, "10.0.0.0/24")
			var once sync.Once
			n.step = func(s string) (err error) {
				if s == step {
					once.Do(func() { err = errors.New("injected") })
				}
				return err
			}
			a, req := n.start(), n.request("web")
			if _, err := a.Add(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			if err := a.DeleteAsync(t.Context(), req.attachment()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the deletion is finished", func() bool {
				_, taken := a.slots.of(req.attachment())
				return !taken
			})
			if f := n.files(); len(f) != 0 || a.find(req.attachment()) != nil {
				t.Errorf("left: %v", f)
			}
			a.Close()
		})
	}
}

// TestForgetKeepsPrograms: an endpoint that the datapath has forgotten leaves no row, and its programs on the link:
// the kernel's stack must not get what the pod still sends. Without the link nothing is left.
func TestForgetKeepsPrograms(t *testing.T) {
	link, k, e, pins := podLink(t)
	e.IPv4 = netip.MustParseAddr("10.0.0.2")
	update := func() {
		t.Helper()
		if err := k.Update(t.Context(), nil, 0, e); err != nil {
			t.Fatal(err)
		}
	}
	update()
	update() // by its lasting link, where there is one
	before := len(attached(t, link))
	e.State = StateDeleting
	update()
	if now := len(attached(t, link)); before == 0 || now != before {
		t.Errorf("%d programs are on the link of an endpoint that is being deleted, %d were", now, before)
	}
	var row bpf.DatapathEndpoint
	if err := k.Datapath.Endpoints.Lookup(bpf.Addr(e.IPv4), &row); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("the row of its address: %v", err)
	}
	var pod bpf.DatapathPodLink
	if err := k.Datapath.PodLinks.Lookup(uint32(e.LinkIndex), &pod); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("the row of its link: %v", err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	if err := k.Delete(t.Context(), nil, 0, e); err != nil {
		t.Error(err)
	}
	if files, err := os.ReadDir(pins); err != nil || len(files) > 0 {
		t.Errorf("pins left: %v, %v", files, err)
	}
}
