package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const stream = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestB","Output":"loud\n"}
{"Action":"fail","Package":"p","Test":"TestB","Elapsed":0.1}
{"Action":"skip","Package":"p","Test":"TestC","Elapsed":0}
{"Action":"fail","Package":"p","Elapsed":0.3}
vm: a line of the VM
{"ImportPath":"q","Action":"build-output","Output":"q.go: undefined: x\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"output","Package":"q","Output":"FAIL\tq [build failed]\n"}
{"Action":"fail","Package":"q","Elapsed":0}
`

func TestTally(t *testing.T) {
	tally := newTally()
	var out strings.Builder
	if err := tally.read(strings.NewReader(stream), &out, "unit", true); err != nil {
		t.Fatal(err)
	}
	if got, want := tally.summary(), "1 passed, 2 failed"; got != want || tally.skipped != 1 {
		t.Errorf("summary %q, want %q", got, want)
	}
	want := `FAIL [unit] p TestB
loud
FAIL p 0.3s
vm: a line of the VM
q.go: undefined: x
FAIL [unit] q
FAIL	q [build failed]
FAIL q 0.0s
`
	if out.String() != want {
		t.Errorf("output\n%s\nwant\n%s", out.String(), want)
	}
}

func TestASkipThatNeverRunsFails(t *testing.T) {
	tally := newTally()
	for _, text := range []string{
		`{"Action":"skip","Package":"p","Test":"TestNowhere"}`, `{"Action":"skip","Package":"p","Test":"TestVM"}`,
		`{"Action":"pass","Package":"p","Test":"TestVM"}`, `{"Action":"skip","Package":"p","Test":"TestNowhere"}`,
	} {
		if err := tally.read(strings.NewReader(text), &strings.Builder{}, "vm", false); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	tally.failNeverRun(&out)
	if tally.failed != 1 || out.String() != "FAIL p TestNowhere: skipped in every ring\n" {
		t.Errorf("%d failed: %s", tally.failed, out.String())
	}
}

// TestAdd: a test that ran in one of two rings has run.
func TestAdd(t *testing.T) {
	one, other := newTally(), newTally()
	for tally, text := range map[*tally]string{
		&one: `{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestB"}`,
		&other: `{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"skip","Package":"p","Test":"TestC"}`,
	} {
		if err := tally.read(strings.NewReader(text), &strings.Builder{}, "unit", false); err != nil {
			t.Fatal(err)
		}
	}
	one.add(other)
	if one.summary() != "1 passed, 1 failed" || one.skipped != 2 || !one.ran["p TestA"] || one.ran["p TestC"] {
		t.Errorf("%s, %d skipped, ran %v", one.summary(), one.skipped, one.ran)
	}
}

func TestSlowest(t *testing.T) {
	tally := newTally()
	const text = `{"Action":"pass","Package":"p","Test":"TestA/x","Elapsed":7}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"p","Test":"TestA/x/y","Elapsed":9}
{"Action":"pass","Package":"p","Elapsed":20}`
	if err := tally.read(strings.NewReader(text), &strings.Builder{}, "lab", false); err != nil {
		t.Fatal(err)
	}
	if got, want := tally.slowest(), "   slowest: lab TestA/x 7 s, lab TestA 0 s\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := tally.slowest(); got != "" {
		t.Errorf("again: %q", got)
	}
}

// TestCutOff: a package whose tests don't end by themselves has failed, whatever it printed until then.
func TestCutOff(t *testing.T) {
	for text, whole := range map[string]bool{
		`{"Action":"pass","Package":"p","Test":"T"}` + "\n" + `{"Action":"pass","Package":"p","Elapsed":1}` +
			"\n": true,
		`{"Action":"pass","Package":"p","Test":"T"}` +
			"\n": false,
		`{"Action":"output","Package":"p","Output":"pass"}` +
			"\n": false,
		"": false,
	} {
		output := filepath.Join(t.TempDir(), "output")
		if err := os.WriteFile(output, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := sawEnd(output); (err == nil) != whole {
			t.Errorf("%q: %v, want whole %v", text, err, whole)
		}
	}
}
