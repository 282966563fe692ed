package parse_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/ciliumv2"
	"myelin/policy/parse"
)

// origin is where objects of tests are from.
func origin(text []byte) parse.Origin {
	return parse.Origin{Source: "test:a.yaml", Lines: parse.YAMLLines(text, 1, "")}
}

// reader finds the reader of a kind.
func reader(t *testing.T, kind string) parse.Reader {
	t.Helper()
	for of, read := range parse.Readers() {
		if strings.HasSuffix(of, "/"+kind) {
			return read
		}
	}
	t.Fatalf("there is no kind %q", kind)
	return nil
}

// readAny makes text of an object of the kind that it says it is: what is wrong
// with it, and its rules.
func readAny(t *testing.T, text []byte) string {
	t.Helper()
	var meta struct{ Kind string }
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil || yaml.Unmarshal(text, &meta) != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	refused := func(faults cluster.FieldErrors) {
		for _, f := range faults {
			fmt.Fprintln(&b, f)
		}
	}
	if meta.Kind == parse.GroupKind {
		g, faults := parse.ReadGroup(raw, origin(text))
		if refused(faults); g != nil {
			fmt.Fprintln(&b, g.Name, g.Prefixes, g.Labels, g.InForce)
		}
		return b.String()
	}
	o, faults := reader(t, meta.Kind)(raw, origin(text))
	if refused(faults); o == nil {
		return b.String()
	}
	if o.InForce == policy.Closed {
		fmt.Fprintln(&b, "closed:")
	}
	for _, s := range o.Specs {
		show(&b, &s)
	}
	return b.String()
}

func show(b *strings.Builder, s *policy.Spec) {
	kind := "pods"
	if s.Nodes {
		kind = "nodes"
	}
	fmt.Fprintf(b, "%s %s\n", kind, s.Subject)
	if s.Tier != policy.TierDefault {
		fmt.Fprintf(b, "tier %d priority %d\n", s.Tier, s.Priority)
	}
	for d, isolates := range s.Isolates {
		if isolates {
			fmt.Fprintf(b, "isolates %s\n", policy.Direction(d))
		}
	}
	for d, actions := range s.Required {
		for a, list := range actions {
			for _, selector := range list {
				fmt.Fprintf(b, "%s %s requires %s\n", policy.Direction(d), policy.Action(a), selector)
			}
		}
	}
	if s.Log != "" {
		fmt.Fprintf(b, "log %s\n", s.Log)
	}
	for _, text := range s.Unenforced {
		fmt.Fprintf(b, "not enforced: %s\n", text)
	}
	for _, r := range s.Rules {
		fmt.Fprintf(b, "%s:%d %s\n", r.Origin.Path, r.Origin.Line, r)
		for _, text := range r.Unenforced {
			fmt.Fprintf(b, "  not enforced: %s\n", text)
		}
	}
}

// TestObjects reads the objects of testdata: NAME is one, NAME/want what
// becomes of it. `go test ./policy/parse -args update` writes the latter.
func TestObjects(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("found %d archives: %v", len(archives), err)
	}
	for _, path := range archives {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		wants := map[string]string{}
		var objects []txtar.File
		for _, f := range archive.Files {
			if name, ok := strings.CutSuffix(f.Name, "/want"); ok {
				wants[name] = string(f.Data)
			} else {
				objects = append(objects, f)
			}
		}
		fresh := &txtar.Archive{Comment: archive.Comment}
		for _, f := range objects {
			got := readAny(t, f.Data)
			fresh.Files = append(fresh.Files, f, txtar.File{Name: f.Name + "/want", Data: []byte(got)})
			if want := wants[f.Name]; got != want && flag.Arg(0) != "update" {
				t.Errorf("%s: %s: got\n%swant\n%s", path, f.Name, got, want)
			}
		}
		if flag.Arg(0) == "update" {
			if err := os.WriteFile(path, txtar.Format(fresh), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// FuzzPolicies reads objects of any kind. What is made of one must be whole,
// whether it is good or not: each peer says one thing, ranges of ports are not
// empty, prefixes have no bits behind them.
func FuzzPolicies(f *testing.F) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range archives {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			if !strings.HasSuffix(file.Name, "/want") {
				f.Add(file.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		raw, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return
		}
		for _, read := range parse.Readers() {
			o, faults := read(raw, parse.Origin{})
			if o == nil {
				continue
			}
			if (o.InForce == policy.Closed) != (len(faults) > 0) || (o.Problem == "") != (len(faults) == 0) {
				t.Errorf("%s: %q %q, %v", o.Ref, o.InForce, o.Problem, faults)
			}
			for _, s := range o.Specs {
				for _, r := range s.Rules {
					whole(t, r)
				}
			}
		}
		var g ciliumv2.CiliumCIDRGroup
		if len(cluster.Decode(raw, &g)) > 0 {
			return
		}
		if group, err := parse.CIDRGroup(&g, ""); err == nil && len(group.Prefixes) != len(g.Spec.ExternalCIDRs) {
			t.Errorf("%d prefixes of %d", len(group.Prefixes), len(g.Spec.ExternalCIDRs))
		}
	})
}

func whole(t *testing.T, r policy.Rule) {
	for _, p := range r.Peers {
		set := 0
		for _, is := range []bool{p.Endpoints != nil, p.Nodes != nil, p.Prefixes != nil, p.Service != nil,
			len(p.Names) > 0} {
			if is {
				set++
			}
		}
		if set != 1 {
			t.Errorf("%s: %d fields of a peer are set", r.Origin, set)
		}
		if p.Prefixes == nil {
			continue
		}
		for _, prefix := range append(p.Prefixes.Include, p.Prefixes.Except...) {
			if !prefix.IsValid() || prefix != prefix.Masked() {
				t.Errorf("%s: prefix %s", r.Origin, prefix)
			}
		}
	}
	if r.L7 != nil && (r.Action != policy.Allow || len(r.Ports) == 0) && (r.Peers == nil || len(r.Peers) > 0) {
		t.Errorf("%s: L7 rules of %s", r.Origin, r)
	}
	for _, p := range r.Ports {
		if p.First > p.Last || p.Proto == policy.ProtoAny || p.Name != "" && p.Last != 0 {
			t.Errorf("%s: port %+v", r.Origin, p)
		}
	}
	if r.Ports != nil && len(r.Ports) == 0 {
		t.Errorf("%s: a list of no ports", r.Origin)
	}
}
