package status

import (
	"os"
	"strings"
	"testing"

	"myelin/config"
	"myelin/ipam"
)

// A load balancer without a cluster misses nothing that pods would need.
func TestStandalone(t *testing.T) {
	f := good(t)
	c, err := config.Parse([]byte("loadBalancer.standalone: true\nipv6.enabled: true\nmyelin.nodeName: lb"),
		"test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f.Config, f.Pools, f.PodCIDRs, f.Conflist, f.Nodes = c, nil, &ipam.Assignment{Node: "lb"},
		Conflist{Path: "/x", Error: os.ErrNotExist}, nil
	f.Services = Services{Attached: true, Services: 2}
	r := Explain(f)
	if broken := r.in(Broken); len(broken) > 0 {
		t.Errorf("broken: %s", strings.Join(broken, ", "))
	}
	for name, want := range map[string]string{"Kubernetes": "none; 2 Services programmed", "CNI Config file": "off",
		"IPAM": "off", "IPv4": "no pods", "IPv6": "no pods"} {
		if got := r.Feature(name).Chosen; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
