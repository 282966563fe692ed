package endpoint

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"myelin/endpoint/nettest"
	"myelin/ipam"
)

// The steps that call Config.Step, in order.
func addSteps() []string { return []string{"plan", "intent", "link", "row", "reconciled", "ready"} }

func deleteSteps() []string { return []string{"deleting", "forgotten", "unlink", "unrow", "unfile"} }

type crash struct{}

// crashes runs do, which a step is to end by a panic.
func crashes(t *testing.T, do func()) {
	t.Helper()
	defer func() {
		if r := recover(); r != (crash{}) {
			t.Fatalf("no crash: %v", r)
		}
	}()
	do()
}

// TestCrash ends the agent after each step and starts it again. The pod must
// be there as a whole, or nothing of it.
func TestCrash(t *testing.T) {
	at := ""
	step := func(s string) error {
		if s == at {
			panic(crash{})
		}
		return nil
	}
	for _, s := range addSteps() {
		t.Run("add-"+s, func(t *testing.T) {
			n := newNode(t, "10.0.0.0/24", "fd00::/64")
			n.step = step
			a, req := n.start(), n.request("web")
			at = s
			crashes(t, func() { _, err := a.Add(t.Context(), req); t.Error("add returned", err) })
			at = ""
			a.stop()
			a = n.start()
			if s == "ready" {
				if _, err := a.Check(t.Context(), req.attachment()); err != nil {
					t.Error(err)
				}
				if err := a.Delete(t.Context(), req.attachment()); err != nil {
					t.Error(err)
				}
			}
			a.empty()
			if _, err := a.Add(t.Context(), req); err != nil {
				t.Error("add again:", err)
			}
		})
	}
	for _, s := range deleteSteps() {
		t.Run("delete-"+s, func(t *testing.T) {
			n := newNode(t, "10.0.0.0/24", "fd00::/64")
			n.step = step
			a, req := n.start(), n.request("web")
			if _, err := a.Add(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			at = s
			crashes(t, func() { t.Error("delete returned", a.Delete(t.Context(), req.attachment())) })
			at = ""
			a.stop()
			a = n.start()
			a.empty()
			if err := a.Delete(t.Context(), req.attachment()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFail lets each step fail instead: Add rolls back at once, Delete succeeds
// when it is repeated.
func TestFail(t *testing.T) {
	at := ""
	failure := errors.New("injected")
	step := func(s string) error {
		if s == at {
			return failure
		}
		return nil
	}
	n := newNode(t, "10.0.0.0/24", "fd00::/64")
	n.step = step
	a := n.start()
	for _, s := range addSteps() {
		at = s
		if _, err := a.Add(t.Context(), n.request(s)); !errors.Is(err, failure) {
			t.Errorf("add failed at %s: %v", s, err)
		}
		a.empty()
	}
	for _, s := range deleteSteps() {
		at = ""
		req := n.request(s)
		if _, err := a.Add(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		at = s
		if err := a.Delete(t.Context(), req.attachment()); !errors.Is(err, failure) {
			t.Errorf("delete failed at %s: %v", s, err)
		}
		at = ""
		if err := a.Delete(t.Context(), req.attachment()); err != nil {
			t.Errorf("delete again after %s: %v", s, err)
		}
		a.empty()
	}
}

// TestRestore starts a second agent on pods that run, one of which lost its
// namespace meanwhile.
func TestRestore(t *testing.T) {
	n := newNode(t, "10.0.0.0/24", "fd00::/64")
	a := n.start()
	lives, dies := n.request("lives"), n.request("dies")
	before, err := a.Add(t.Context(), lives)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Add(t.Context(), dies); err != nil {
		t.Fatal(err)
	}
	a.stop()
	nettest.RemoveNS(t, dies.NetNS)
	eventually(t, "the link is gone", func() bool { return len(links(t)) == 1 })
	if err := os.WriteFile(filepath.Join(n.runDir, "endpoints", "9.json.tmp"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	a = n.start()
	after, err := a.Check(t.Context(), lives.attachment())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the row is reconciled", func() bool { return a.wait(t.Context(), after.ID) == nil })
	strip := func(e *Endpoint) Endpoint {
		c := *e
		c.Status, c.CreatedAt = before.Status, before.CreatedAt
		return c
	}
	if b, e := strip(before), strip(after); !reflect.DeepEqual(b, e) {
		t.Errorf("restored\n%+v, was\n%+v", e, b)
	}
	if f := n.files(); len(f) != 1 {
		t.Errorf("files %v", f)
	}
	// The address of the pod that lives is not handed out again.
	for range 20 {
		e, err := a.Add(t.Context(), n.request("more"+string(rune('a'+len(n.files())))))
		if err != nil {
			t.Fatal(err)
		}
		if e.IPv4 == before.IPv4 || e.IPv6 == before.IPv6 || e.ID == before.ID {
			t.Errorf("%+v has what %+v has", e, before)
		}
	}
}

// TestRestoreOldMTU: a pod that was made when links had the routes' MTU is right
// as it is.
func TestRestoreOldMTU(t *testing.T) {
	n := newNode(t, "10.0.0.0/24", "fd00::/64")
	n.config.MTU, n.config.RouteMTU = 1350, 0
	a, req := n.start(), n.request("old")
	if _, err := a.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	a.stop()
	state, err := os.ReadFile(filepath.Join(n.runDir, "endpoints", "2.json"))
	if err != nil || strings.Contains(string(state), "routeMTU") {
		t.Errorf("%v; the state is not that of an older agent:\n%s", err, state)
	}
	n.config.MTU, n.config.RouteMTU = 1400, 1350
	a = n.start()
	e, err := a.Check(t.Context(), req.attachment())
	if err != nil {
		t.Fatal(err)
	}
	if e.MTU != 1350 || e.RouteMTU != 0 {
		t.Errorf("MTU %d, of routes %d", e.MTU, e.RouteMTU)
	}
}

// TestRestoreBadFiles: what can't be restored is named, and takes nothing else
// down.
func TestRestoreBadFiles(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a := n.start()
	req := n.request("lives")
	if _, err := a.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	a.stop()
	dir := filepath.Join(n.runDir, "endpoints")
	good, err := os.ReadFile(filepath.Join(dir, "2.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"3.json": "{",
		"4.json": string(good),
		"5.json": strings.NewReplacer(`"id": 2`, `"id": 5`, req.ContainerID, "other").Replace(string(good)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	allocator, _ := ipam.New(n.prefixes...)
	m := NewManager(nettest.Log(t), a.db, a.table, allocator, a.driver, a.config)
	if _, err := m.Add(t.Context(), req); !errors.Is(err, ErrNotRestored) {
		t.Errorf("add before restore: %v", err)
	}
	err = m.Restore(t.Context())
	for _, want := range []string{"3.json", "4.json", "restore endpoint 5", "in use by " + req.ContainerID} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not tell %q: %v", want, err)
		}
	}
	if e := m.find(req.attachment()); e == nil || e.ID != 2 || !m.Ready() {
		t.Errorf("the good endpoint is not there: %+v", e)
	}
}
