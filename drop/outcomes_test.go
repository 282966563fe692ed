package drop

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"myelin/bpf"
)

// update is set by `go test ./drop -run Text -args update`.
func update() bool { return flag.Arg(0) == "update" }

// TestOutcomesAreThoseOfTheDatapath compares with the enum in the object's own
// type information.
func TestOutcomesAreThoseOfTheDatapath(t *testing.T) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("outcome", &enum); err != nil {
		t.Fatal(err)
	}
	names := NewNames()
	seen := 0
	for _, v := range enum.Values {
		if v.Name == "DROP_FIRST" || v.Name == "OUTCOMES" { // bounds
			continue
		}
		seen++
		o := names.Outcome(uint8(v.Value))
		if o.Name != v.Name {
			t.Errorf("%d is %s in drop.h and %s here", v.Value, v.Name, o.Name)
			continue
		}
		if !strings.HasSuffix(o.What, ".") {
			t.Errorf("%s: %q is no sentence", v.Name, o.What)
		}
		if o.IsDrop() != strings.HasPrefix(v.Name, "DROP_") || o.IsDrop() && o.Do == "" {
			t.Errorf("%s: drop %v, to do %q", v.Name, o.IsDrop(), o.Do)
		}
	}
	if n := len(outcomes()); n != seen {
		t.Errorf("%d outcomes, drop.h has %d", n, seen)
	}
}

func TestHooksAreThoseOfTheDatapath(t *testing.T) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("hook", &enum); err != nil {
		t.Fatal(err)
	}
	for _, v := range enum.Values {
		if v.Name == "HOOKS" {
			continue
		}
		if want := strings.ToLower(strings.TrimPrefix(v.Name, "HOOK_")); string(Hooks()[v.Value]) != want {
			t.Errorf("%d is %s, want %s", v.Value, Hooks()[v.Value], want)
		}
	}
}

// TestText keeps the words that scripts and dashboards look for.
func TestText(t *testing.T) {
	var got bytes.Buffer
	labels := map[string]bool{}
	for _, o := range outcomes() {
		fmt.Fprintf(&got, "%-8s %-28s %s\n", o.verdict(), o.Label(), o.Text())
		if labels[o.verdict()+o.Label()] {
			t.Errorf("label %s is there twice", o.Label())
		}
		labels[o.verdict()+o.Label()] = true
	}
	const file = "testdata/outcomes.txt"
	if update() {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("got:\n%s\nwant:\n%s", got.Bytes(), want)
	}
}

func TestUnknownOutcome(t *testing.T) {
	if o := NewNames().Outcome(127); o.Name != "OUTCOME_127" || o.Text() != "outcome 127" || !o.IsDrop() {
		t.Errorf("%+v, %q", o, o.Text())
	}
}
