package parse_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"myelin/policy/parse"
	"myelin/test/policy/policytest"
)

// found is all that is wrong with an object, and what is not enforced of it.
func found(t *testing.T, kind, raw string) (out []string) {
	t.Helper()
	if kind == parse.GroupKind {
		_, faults := parse.ReadGroup([]byte(raw), parse.Origin{})
		for _, f := range faults {
			out = append(out, f.Error())
		}
		return out
	}
	o, faults := reader(t, kind)([]byte(raw), parse.Origin{})
	for _, f := range faults {
		out = append(out, f.Error())
	}
	if o != nil {
		out = append(out, o.Unenforced()...)
	}
	return out
}

// TestEachRejection finds for each place in the code that rejects something of a
// policy an object that it does so with. testdata/rejections.txt is the table of
// them: `go test ./policy/parse -args update` writes it. Where an object is missing,
// policytest/testdata/rejected/more.yaml is to have a change that makes one.
func TestEachRejection(t *testing.T) {
	examples := map[string]string{}
	sites := policytest.Sites(t, ".")
	if len(sites) < 60 {
		t.Fatalf("only %d sites", len(sites))
	}
	for _, kind := range policytest.Kinds() {
		for _, m := range policytest.Mutations(t, "../../test/policy/policytest/testdata/rejected", kind) {
			for _, text := range found(t, kind, m.Raw) {
				for _, s := range sites {
					if key := s.String(); examples[key] == "" && s.Noted(kind, text) {
						examples[key] = fmt.Sprintf("%s with %s", kind, m.Name)
					}
				}
			}
		}
	}
	var b strings.Builder
	for _, s := range sites {
		if examples[s.String()] == "" {
			t.Errorf("nothing is rejected by %s", s)
		}
		fmt.Fprintf(&b, "%s: %s\n", s, examples[s.String()])
	}
	const path = "testdata/rejections.txt"
	if flag.Arg(0) == "update" {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != b.String() {
		t.Errorf("%s is stale: %v", path, err)
	}
}
