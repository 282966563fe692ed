package config

import (
	"slices"
	"testing"
)

func TestPolicyValues(t *testing.T) {
	refuse(t, map[string]refused{
		"another mode": {"policyCIDRMatchMode: [nodes, pods]",
			[]string{`f.yaml: policyCIDRMatchMode: "pods" is none of nodes`}},
		"twice": {"policyCIDRMatchMode: [nodes, nodes]",
			[]string{"f.yaml: policyCIDRMatchMode: nodes stands twice in the list"}},
		"no list": {"policyCIDRMatchMode: 1", []string{"f.yaml: policyCIDRMatchMode: 1 is not a list"}},
		"a long name": {"cluster.name: a23456789-123456789-123456789-123",
			[]string{`f.yaml: cluster.name: "a23456789-123456789-123456789-123" is longer than 32 characters`}},
	})
	for file, want := range map[string]struct {
		modes   []string
		cluster string
	}{
		"policyCIDRMatchMode: []":                             {nil, "default"},
		"policyCIDRMatchMode: [nodes]\ncluster: {name: east}": {[]string{"nodes"}, "east"},
		"policyCIDRMatchMode: nodes":                          {[]string{"nodes"}, "default"},
	} {
		c, err := Parse([]byte("ipv4NativeRoutingCIDR: 10.0.0.0/8\n"+file), "f")
		if err != nil || !slices.Equal(c.Policy.CIDRMatchMode, want.modes) || c.ClusterName != want.cluster {
			t.Errorf("%s: got %v, %s, %v", file, c.Policy.CIDRMatchMode, c.ClusterName, err)
		}
	}
}
