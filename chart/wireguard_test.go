package chart

import (
	"fmt"
	"maps"
	"testing"

	"sigs.k8s.io/yaml"

	"myelin/config"
)

// wireguardObjects are what a rendering has of WireGuard's processes.
type wireguardObjects struct {
	daemon  map[string]any
	account bool // there is a service account
	config  *config.Config
}

func wireguardOf(t *testing.T, text string) (w wireguardObjects) {
	t.Helper()
	var values map[string]any
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	for _, o := range render(t, values) {
		name := at(o.Content, "metadata/name")
		switch kind := o.Content["kind"]; {
		case kind == "DaemonSet" && name == "myelin-wireguard":
			w.daemon = o.Content
		case kind == "ServiceAccount" && name == "myelin-wireguard":
			w.account = true
		case kind == "ConfigMap" && name == "myelin-config":
			c, err := config.Parse([]byte(at(o.Content, "data/myelin.yaml").(string)), "values")
			if err != nil {
				t.Fatal(err)
			}
			w.config = c
		}
	}
	return w
}

// TestWireGuard: agents in pods never start WireGuard's processes, and a DaemonSet does if it is asked for.
func TestWireGuard(t *testing.T) {
	const fallback = "wireguard: {userspaceFallback: true}"
	for _, row := range []struct {
		values            string
		daemon, supervise bool
	}{
		{values: "{}", supervise: true},
		{values: "{encryption: {enabled: true, type: wireguard}}"},
		{values: "{encryption: {enabled: true, type: wireguard, " + fallback + "}}", daemon: true},
		{values: "{encryption: {enabled: true, " + fallback + "}}", supervise: true},
		{values: "{encryption: {type: wireguard, " + fallback + "}}", supervise: true},
	} {
		w := wireguardOf(t, row.values)
		supervise := w.config.Encryption.Supervise
		if (w.daemon != nil) != row.daemon || w.account != row.daemon || supervise != row.supervise {
			t.Errorf("%s: DaemonSet %t, account %t, the agent starts processes: %t", row.values, w.daemon != nil,
				w.account, supervise)
		}
	}
}

// TestWireGuardRights: the pods are not replaced by upgrades, have no more of their node than they need, and the
// resources that users give.
func TestWireGuardRights(t *testing.T) {
	w := wireguardOf(t, `{encryption: {enabled: true, type: wireguard, wireguard: {userspaceFallback: true}},
		myelin: {runDir: /run/own, wireguard: {resources: {limits: {memory: 512Mi}}}}}`)
	want := map[string]string{"run": "/run/own/wireguard", "tun": "/dev/net/tun"}
	if have := hostPaths(w.daemon); !maps.Equal(have, want) {
		t.Errorf("host paths %v, want %v", have, want)
	}
	if update := at(w.daemon, "spec/updateStrategy/type"); update != "OnDelete" {
		t.Errorf("updates by %v", update)
	}
	spec := at(w.daemon, "spec/template/spec")
	if at(spec, "automountServiceAccountToken") != false || at(spec, "priorityClassName") != "system-node-critical" {
		t.Errorf("pods: %v", spec)
	}
	container := at(spec, "containers").([]any)[0]
	if at(container, "securityContext/privileged") != nil ||
		fmt.Sprint(at(container, "securityContext/capabilities/add")) != "[NET_ADMIN SYS_NICE]" {
		t.Errorf("security context %v", at(container, "securityContext"))
	}
	if limit := at(container, "resources/limits/memory"); limit != "512Mi" {
		t.Errorf("memory limit %v", limit)
	}
}
