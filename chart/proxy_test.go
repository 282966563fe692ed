package chart

import (
	"maps"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"myelin/config"
)

// proxyObjects are what a rendering has of the proxy.
type proxyObjects struct {
	daemon map[string]any
	// account: it has a service account. tun: agents have the TUN device.
	account, tun bool
	config       *config.Config
}

func proxyOf(t *testing.T, values map[string]any) (p proxyObjects) {
	t.Helper()
	for _, o := range render(t, values) {
		name := at(o.Content, "metadata/name")
		switch kind := o.Content["kind"]; {
		case kind == "DaemonSet" && name == "myelin-proxy":
			p.daemon = o.Content
		case kind == "ServiceAccount" && name == "myelin-proxy":
			p.account = true
		case kind == "DaemonSet" && name == "myelin":
			p.tun = hostPaths(o.Content)["tun"] == "/dev/net/tun"
		case kind == "ConfigMap" && name == "myelin-config":
			c, err := config.Parse([]byte(at(o.Content, "data/myelin.yaml").(string)), "values")
			if err != nil {
				t.Fatal(err)
			}
			p.config = c
		}
	}
	return p
}

// hostPaths are the paths of the node that a workload's pods have, by the name of the volume.
func hostPaths(workload map[string]any) map[string]string {
	paths := map[string]string{}
	list, _ := at(workload, "spec/template/spec/volumes").([]any)
	for _, v := range list {
		if path, ok := at(v, "hostPath/path").(string); ok {
			paths[at(v, "name").(string)] = path
		}
	}
	return paths
}

// TestProxy: exactly one of DaemonSet and agent runs the proxy, and none of them without L7 rules.
func TestProxy(t *testing.T) {
	for _, row := range []struct {
		values                   string
		daemon, tun, supervise   bool
		surge, unavailable, open any
	}{
		{values: "{}", daemon: true, surge: 2.0, unavailable: 0.0},
		{values: "{envoy: {updateStrategy: {rollingUpdate: {maxUnavailable: 1}}}}", daemon: true, surge: 0.0,
			unavailable: 1.0},
		{values: "{myelin: {proxy: {open: true, supervise: true}}}", daemon: true, surge: 2.0, unavailable: 0.0,
			open: true},
		{values: "{envoy: {enabled: false}}", tun: true, supervise: true},
		{values: "{envoy: {enabled: false}, myelin: {proxy: {supervise: false}}}", tun: true},
		{values: "{l7Proxy: false}", supervise: true},
		{values: "{l7Proxy: false, envoy: {enabled: false}}", supervise: true},
	} {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(row.values), &values); err != nil {
			t.Fatal(err)
		}
		p := proxyOf(t, values)
		if (p.daemon != nil) != row.daemon || p.account != row.daemon || p.tun != row.tun ||
			p.config.L7.Supervise != row.supervise || p.config.L7.Open != (row.open == true) {
			t.Errorf("%s: DaemonSet %t, account %t, TUN device of agents %t, options %+v", row.values, p.daemon != nil,
				p.account, p.tun, p.config.L7)
		}
		if at(p.daemon, "spec/updateStrategy/rollingUpdate/maxSurge") != row.surge ||
			at(p.daemon, "spec/updateStrategy/rollingUpdate/maxUnavailable") != row.unavailable {
			t.Errorf("%s: updates by %v", row.values, at(p.daemon, "spec/updateStrategy"))
		}
	}
}

// TestProxyRights: the proxy has no more of its node than it needs, and runs where agents do.
func TestProxyRights(t *testing.T) {
	values := map[string]any{"operator": map[string]any{"migrateFromCilium": true}}
	p := proxyOf(t, values)
	want := map[string]string{"run": "/run/myelin/proxy", "bpf": "/sys/fs/bpf", "tun": "/dev/net/tun"}
	if have := hostPaths(p.daemon); !maps.Equal(have, want) {
		t.Errorf("host paths %v, want %v", have, want)
	}
	spec := at(p.daemon, "spec/template/spec")
	if at(spec, "automountServiceAccountToken") != false || at(spec, "priorityClassName") != "system-node-critical" {
		t.Errorf("pods: %v", spec)
	}
	container := at(spec, "containers").([]any)[0]
	added, _ := at(container, "securityContext/capabilities/add").([]any)
	if at(container, "securityContext/privileged") != nil || len(added) != 3 {
		t.Errorf("security context %v", at(container, "securityContext"))
	}
	if at(spec, "affinity/nodeAffinity") == nil {
		t.Error("proxies run where Cilium does")
	}
	values["envoy"] = map[string]any{"affinity": map[string]any{"nodeAffinity": map[string]any{
		"preferredDuringSchedulingIgnoredDuringExecution": []any{}}}}
	const refused = "envoy.affinity.nodeAffinity: can't be given while operator.migrateFromCilium is true"
	if _, err := Render(Options{Release: "myelin", Namespace: "kube-system", Version: "1.2.3",
		Values: values}); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("a node affinity beside that of the migration: %v", err)
	}
}
