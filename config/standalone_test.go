package config

import "testing"

// A load balancer without a cluster needs one key.
func TestStandalone(t *testing.T) {
	c, err := Parse([]byte("loadBalancer.standalone: true"), "lb.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !c.LoadBalancer.Standalone || !c.SocketLB.Enabled || len(c.Warnings) > 0 {
		t.Errorf("standalone %t, Services %t, warnings %v", c.LoadBalancer.Standalone, c.SocketLB.Enabled, c.Warnings)
	}
	for _, s := range c.Explain() {
		if s.Key == "socketLB.enabled" && (s.Value != "true" || s.Source != "derived") {
			t.Errorf("got %+v", s)
		}
	}
	if c, err = Parse([]byte("loadBalancer.standalone: false"), "lb.yaml"); err != nil || c.SocketLB.Enabled {
		t.Errorf("got %v", err)
	}
}

func TestStandaloneRefused(t *testing.T) {
	refuse(t, map[string]refused{
		"standalone, with a cluster": {
			"loadBalancer.standalone: true\nroutingMode: tunnel\nk8sServiceHost: h\nmyelin.manifests: /m",
			[]string{
				"f.yaml: k8sServiceHost: is set, and loadBalancer.standalone is true, which is without a cluster",
				"f.yaml: myelin.manifests: is set, and loadBalancer.standalone is true, which is without a cluster",
				"f.yaml: routingMode: is tunnel, and loadBalancer.standalone is true, which is without a cluster",
			},
		},
	})
}
