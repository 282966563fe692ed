package parse_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/ciliumv2"
	"myelin/policy/parse"
)

// read makes text of an object of YAML: its rules, or what is wrong with it.
func read[T any](text []byte, of func(*T, string, parse.Lines) ([]policy.Spec, error)) (string, error) {
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return "", err
	}
	var object T
	if faults := cluster.Decode(raw, &object); len(faults) > 0 {
		return "", faults
	}
	specs, err := of(&object, "test:a.yaml", parse.YAMLLines(text, 1, ""))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, s := range specs {
		show(&b, &s)
	}
	return b.String(), nil
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
	for _, r := range s.Rules {
		fmt.Fprintf(b, "%s:%d %s\n", r.Origin.Path, r.Origin.Line, r)
	}
}

// readAny reads an object of the kind that it says it is.
func readAny(text []byte) (string, error) {
	var meta struct{ Kind string }
	if err := yaml.Unmarshal(text, &meta); err != nil {
		return "", err
	}
	switch meta.Kind {
	case "NetworkPolicy":
		return read[networkingv1.NetworkPolicy](text, parse.NetworkPolicy)
	case "ClusterNetworkPolicy":
		return read[v1alpha2.ClusterNetworkPolicy](text, parse.ClusterNetworkPolicy)
	case "CiliumNetworkPolicy":
		return read[ciliumv2.CiliumNetworkPolicy](text, parse.CiliumNetworkPolicy)
	case "CiliumClusterwideNetworkPolicy":
		return read[ciliumv2.CiliumClusterwideNetworkPolicy](text, parse.CiliumClusterwideNetworkPolicy)
	case "CiliumCIDRGroup":
		return readGroup(text)
	}
	return "", fmt.Errorf("kind %q", meta.Kind)
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
			got, err := readAny(f.Data)
			if err != nil {
				got = strings.ReplaceAll(err.Error(), "; ", "\n") + "\n"
			}
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

func readGroup(text []byte) (string, error) {
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return "", err
	}
	var object ciliumv2.CiliumCIDRGroup
	if faults := cluster.Decode(raw, &object); len(faults) > 0 {
		return "", faults
	}
	g, err := parse.CIDRGroup(&object, "test:a.yaml")
	if err != nil {
		return "", err
	}
	return fmt.Sprintln(g.Name, g.Prefixes, g.Labels), nil
}

// FuzzPolicies reads objects of any kind. What is accepted must be whole: each
// peer says one thing, ranges of ports are not empty, prefixes have no bits
// behind them.
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
		for _, specs := range [][]policy.Spec{
			accepted[networkingv1.NetworkPolicy](raw, parse.NetworkPolicy), accepted[v1alpha2.ClusterNetworkPolicy](raw, parse.ClusterNetworkPolicy),
			accepted[ciliumv2.CiliumNetworkPolicy](raw, parse.CiliumNetworkPolicy),
			accepted[ciliumv2.CiliumClusterwideNetworkPolicy](raw, parse.CiliumClusterwideNetworkPolicy),
		} {
			for _, s := range specs {
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

func accepted[T any](raw []byte, of func(*T, string, parse.Lines) ([]policy.Spec, error)) []policy.Spec {
	var object T
	if len(cluster.Decode(raw, &object)) > 0 {
		return nil
	}
	specs, err := of(&object, "", nil)
	if err != nil {
		return nil
	}
	return specs
}

func whole(t *testing.T, r policy.Rule) {
	for _, p := range r.Peers {
		set := 0
		for _, is := range []bool{p.Endpoints != nil, p.Nodes != nil, p.Prefixes != nil, p.Service != nil} {
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
	for _, p := range r.Ports {
		if p.First > p.Last || p.Proto == policy.ProtoAny || p.Name != "" && p.Last != 0 {
			t.Errorf("%s: port %+v", r.Origin, p)
		}
	}
	if r.Ports != nil && len(r.Ports) == 0 {
		t.Errorf("%s: a list of no ports", r.Origin)
	}
}
