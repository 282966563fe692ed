package random

import (
	"errors"
	"testing"

	"myelin/cluster"
	"myelin/policy/parse"
	"myelin/test/policy/reference"
	"myelin/test/policy/scenario"
)

// TestValid: what is made up, and what is written by hand, is what the parsers of
// the agent take.
func TestValid(t *testing.T) {
	for seed := range 1000 {
		w := World(seeded(seed), size)
		if err := valid(w); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
	scenarios, err := scenario.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		w, err := s.World()
		if err != nil {
			t.Fatal(err)
		}
		if err := valid(w); err != nil {
			t.Errorf("scenario %s: %v", s.Name, err)
		}
	}
}

func valid(w *reference.World) error {
	return errors.Join(
		all(w.Nodes, cluster.FromNode), all(w.Namespaces, cluster.FromNamespace), all(w.Pods, cluster.FromPod),
		all(w.Services, cluster.FromService), all(w.EndpointSlices, cluster.FromEndpointSlice),
		all(w.NetworkPolicies, lineless(parse.NetworkPolicy)), all(w.CiliumNetworkPolicies,
			lineless(parse.CiliumNetworkPolicy)),
		all(w.CiliumClusterwideNetworkPolicies, lineless(parse.CiliumClusterwideNetworkPolicy)),
		all(w.ClusterNetworkPolicies, lineless(parse.ClusterNetworkPolicy)), all(w.CIDRGroups, parse.CIDRGroup),
	)
}

func all[T, R any](objects []*T, read func(*T, string) (R, error)) error {
	for _, object := range objects {
		if _, err := read(object, "test"); err != nil {
			return err
		}
	}
	return nil
}

func lineless[T, R any](read func(*T, string, parse.Lines) (R, error)) func(*T, string) (R, error) {
	return func(object *T, source string) (R, error) { return read(object, source, nil) }
}
