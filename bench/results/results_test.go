package results

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestRecordReplacesOnlyWhatWasMeasured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	must(t, Record(path, []Result{{Name: "b/x", Value: 1, Unit: "s", Kernel: "k1"},
		{Name: "a/x", Value: 2, Unit: "s", Kernel: "k1"}}))
	must(t, Record(path, []Result{Result{Name: "b/x", Value: 3, Unit: "s", Kernel: "k2"}.Against(4)}))
	data, err := os.ReadFile(path)
	must(t, err)
	want := `[
  {"name":"a/x","value":2,"unit":"s","kernel":"k1"},
  {"name":"b/x","value":3,"unit":"s","baseline":4,"ratio":0.75,"kernel":"k2"}
]
`
	if string(data) != want {
		t.Errorf("got\n%s\nwant\n%s", data, want)
	}
}

func TestRecordRefusesWhatItCannotKeep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	if err := Record(path, []Result{{Value: 1}}); err == nil {
		t.Error("a result without a name was recorded")
	}
	must(t, os.WriteFile(path, []byte("[{"), 0o644))
	if err := Record(path, []Result{{Name: "a/x"}}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file was overwritten, or its error doesn't name it: %v", err)
	}
}

func TestRecordFromManyAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := Record(path, []Result{{Name: fmt.Sprintf("x/%d", i), Unit: "s"}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	list, err := Load(path)
	must(t, err)
	if len(list) != 20 {
		t.Errorf("%d of 20 results stayed", len(list))
	}
}

func TestCheck(t *testing.T) {
	half, most, zero := 0.5, 0.99, 0.0
	budgets := []Budget{
		{Name: "vm/good/rr", MinRatio: &half}, {Name: "vm/slow/rr", MinRatio: &half},
		{Name: "vm/none/rr", MinRatio: &half},
		{Name: "lost/none", MaxValue: &zero, Unit: "packets"}, {Name: "lost/some", MaxValue: &zero, Unit: "packets"},
		{Name: "lost/unit", MaxValue: &zero, Unit: "packets"},
		{Name: "vm/good/rr", MinRatio: &half, Of: "vm/slow/rr"}, {Name: "vm/slow/rr", MinRatio: &most,
			Of: "vm/good/rr"},
		{Name: "vm/good/rr", MinRatio: &half, Of: "vm/none/rr"}, {Name: "lost/none", MinRatio: &half, Of: "vm/good/rr"},
	}
	list := []Result{
		{Name: "vm/good/rr", Ratio: 0.5}, {Name: "vm/slow/rr", Ratio: 0.49},
		{Name: "lost/none", Unit: "packets"}, {Name: "lost/some", Value: 1, Unit: "packets"},
		{Name: "lost/unit", Unit: "s"},
	}
	var got []string
	for _, err := range Check(list, budgets) {
		got = append(got, err.Error())
	}
	want := []string{
		"vm/slow/rr: ratio 0.490, budget ≥ 0.50", "vm/none/rr: not measured, budget ≥ 0.50",
		"lost/some: 1 packets, budget ≤ 0 packets", `lost/unit: measured in "s", budget ≤ 0 packets`,
		"vm/slow/rr: ratio 0.980 to vm/good/rr, budget ≥ 0.99 of vm/good/rr",
		"vm/good/rr: it and vm/none/rr must both be measured against a baseline, budget ≥ 0.50 of vm/none/rr",
		"lost/none: it and vm/good/rr must both be measured against a baseline, budget ≥ 0.50 of vm/good/rr",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A bound is printed with all of its decimals.
func TestBudgetText(t *testing.T) {
	for ratio, want := range map[float64]string{0.5: "≥ 0.50", 4: "≥ 4.00", 0.995: "≥ 0.995", 2.8: "≥ 2.80"} {
		if got := (Budget{Name: "x", MinRatio: &ratio}).String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := (Budget{Name: "x", MinRatio: &ratio, Of: "y"}).String(); got != want+" of y" {
			t.Errorf("got %s, want %s of y", got, want)
		}
	}
}

func TestCommittedBudgetsAreValid(t *testing.T) {
	budgets, err := LoadBudgets("../budget.json")
	must(t, err)
	seen := map[string]bool{}
	for _, b := range budgets {
		if bound := b.Name + " " + b.Of; seen[bound] {
			t.Errorf("two budgets for %s", bound)
		} else {
			seen[bound] = true
		}
	}
}

func TestLoadBudgetsRefusesNoBoundAndTwo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "budget.json")
	for _, text := range []string{`[{"name":"x"}]`, `[{"name":"x","min_ratio":1,"max_value":1}]`,
		`[{"name":"x","of":"y","max_value":1}]`, `[{"name":"x","min_value":1,"max_value":1}]`} {
		must(t, os.WriteFile(path, []byte(text), 0o644))
		if _, err := LoadBudgets(path); err == nil {
			t.Errorf("accepted %s", text)
		}
	}
}

func TestMinValue(t *testing.T) {
	least := 100.0
	b := Budget{Name: "x", MinValue: &least, Unit: "pods/s"}
	for value, want := range map[float64]int{100: 0, 250: 0, 99.9: 1} {
		if broken := Check([]Result{{Name: "x", Value: value, Unit: "pods/s"}}, []Budget{b}); len(broken) != want {
			t.Errorf("%g: %v", value, broken)
		}
	}
	if broken := Check([]Result{{Name: "x", Value: 200, Unit: "s"}}, []Budget{b}); len(broken) != 1 ||
		b.String() != "≥ 100 pods/s" {
		t.Errorf("%s: %v", b, broken)
	}
}

func TestPage(t *testing.T) {
	ratio, most := 0.8, 60.0
	page := NewPage([]Result{
		Result{Name: "vm/plain/rr", Value: 75, Unit: "1/s", Kernel: "k"}.Against(100),
		Result{Name: "vm/node/rr", Value: 100, Unit: "1/s", Kernel: "k"}.Against(100),
		{Name: "agent/ready_s", Value: 0.25, Unit: "s", Kernel: "k"},
		Result{Name: "service/flat", Value: 99, Unit: "1/s", Kernel: "k"}.Against(100),
	}, []Budget{{Name: "vm/plain/rr", MinRatio: &ratio}, {Name: "vm/plain/rr", MinRatio: &ratio, Of: "vm/node/rr"},
		{Name: "agent/rss_mb", MaxValue: &most, Unit: "MB"}})
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/t", []byte("{{.Kernels \"vm\"}}\n{{.Traffic \"vm\" \"rr\" \"crr\"}}{{.Others}}"), 0o644))
	must(t, page.WriteFile(dir+"/t", dir+"/page.md"))
	got, err := os.ReadFile(dir + "/page.md")
	must(t, err)
	want := `k
| path | rr | crr |
|---|---|---|
| node | **1.000** (100 1/s) | – |
| plain | **0.750** (75 1/s), budget ≥ 0.80, ≥ 0.80 of vm/node/rr | – |
| what | measured | budget | kernel |
|---|---|---|---|
| agent/ready_s | 0.25 s |  | k |
| agent/rss_mb | – | ≤ 60 MB | – |
| service/flat | **0.990** (99 1/s) |  | k |
`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
