// Package scenario has policies and their meaning, written by hand from the documentation of Kubernetes, of the network
// policy API and of Cilium: which peers can reach each other, and on which ports. All are for one small cluster.
package scenario

import (
	"embed"
	"fmt"
	"path"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"

	"myelin/test/policy/reference"
)

//go:embed cluster.yaml scenarios/*.txtar
var files embed.FS

// Scenario is policies for the cluster, and probes.
type Scenario struct {
	// Name is the file's, without its extension.
	Name string
	// Doc says what it is about, and from which document.
	Doc string
	// Objects are YAML: policies, and what belongs to them.
	Objects []byte
	// Probes are what must come through, and what must not.
	Probes []Probe
}

// Cluster is the YAML of the cluster: nodes, namespaces and pods.
func Cluster() ([]byte, error) { return files.ReadFile("cluster.yaml") }

// All are the scenarios, by name. An error names the file, and the line of a bad
// probe.
func All() ([]Scenario, error) {
	names, err := files.ReadDir("scenarios")
	if err != nil {
		return nil, fmt.Errorf("list scenarios: %w", err)
	}
	bare, err := base()
	if err != nil {
		return nil, err
	}
	var all []Scenario
	for _, name := range names {
		text, err := files.ReadFile(path.Join("scenarios", name.Name()))
		if err != nil {
			return nil, fmt.Errorf("read scenario %s: %w", name.Name(), err)
		}
		s, err := parse(strings.TrimSuffix(name.Name(), ".txtar"), text, bare)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name.Name(), err)
		}
		all = append(all, s)
	}
	return all, nil
}

func parse(name string, text []byte, cluster *reference.World) (Scenario, error) {
	archive := txtar.Parse(text)
	s := Scenario{Name: name, Doc: strings.TrimSpace(string(archive.Comment))}
	for _, file := range archive.Files {
		switch file.Name {
		case "objects.yaml":
			s.Objects = file.Data
		case "probes":
			probes, err := parseProbes(string(file.Data), cluster)
			if err != nil {
				return s, err
			}
			s.Probes = probes
		default:
			return s, fmt.Errorf("file %q: not objects.yaml and not probes", file.Name)
		}
	}
	if s.Doc == "" || len(s.Probes) == 0 {
		return s, fmt.Errorf("no text above the files, or no probes")
	}
	return s, nil
}

// World is the cluster with the scenario's objects, seen from no node yet.
func (s Scenario) World() (*reference.World, error) {
	w, err := base()
	if err != nil {
		return nil, err
	}
	if err := Add(w, s.Objects); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return w, nil
}

func base() (*reference.World, error) {
	text, err := Cluster()
	if err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	w := &reference.World{}
	if err := Add(w, text); err != nil {
		return nil, fmt.Errorf("cluster.yaml: %w", err)
	}
	return w, nil
}
