package chart

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"myelin/config"
)

// TestServerAuto: the API server's address as kubeadm stores it.
func TestServerAuto(t *testing.T) {
	for url, want := range map[string]string{
		"https://192.0.2.10:6443":      "k8sServiceHost: \"192.0.2.10\"\nk8sServicePort: 6443\n",
		"https://[2001:db8::1]:443":    "k8sServiceHost: \"2001:db8::1\"\nk8sServicePort: 443\n",
		"https://api.example.org:8443": "k8sServiceHost: \"api.example.org\"\nk8sServicePort: 8443\n",
		"https://api.example.org":      "",
		"":                             "",
	} {
		find := func(_, _, _, name string) (map[string]any, error) {
			if url == "" {
				return nil, nil
			}
			return map[string]any{"data": map[string]any{"kubeconfig": "clusters:\n- cluster:\n    server: " + url +
				"\n  name: " + name + "\n"}}, nil
		}
		objects, err := Render(Options{Release: "myelin", Namespace: "kube-system", Version: "1.2.3",
			Values: map[string]any{"k8sServiceHost": "auto", "k8sServicePort": 1}, Lookup: find})
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "k8sServiceHost: auto: ") {
				t.Errorf("%q: %v", url, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%q: %v", url, err)
		}
		i := slices.IndexFunc(objects, func(o Object) bool { return o.Template == "templates/config.yaml" })
		if data, _ := objects[i].Content["data"].(map[string]any); !strings.HasPrefix(data["myelin.yaml"].(string),
			want) {
			t.Errorf("%q: the configuration begins not with %q:\n%.100s", url, want, data["myelin.yaml"])
		}
	}
}

// TestRefused has Helm and Render refuse values, with the place in what they say.
func TestRefused(t *testing.T) {
	for set, want := range map[string]string{
		"routingMode=tunel":                       "routingMode",
		"bpf.ctTcpMax=12":                         "bpf/ctTcpMax",
		"bpf.ctTcpMax=many":                       "bpf/ctTcpMax",
		"ipv6.enabled=yes please":                 "ipv6/enabled",
		"kubeProxyReplacement=strict":             "kubeProxyReplacement",
		"egressGateway.enabled=true":              "egressGateway/enabled",
		"hubble.relay.replicas=some":              "hubble/relay/replicas",
		"routeMode=native":                        "routeMode",
		"ipv4NativeRoutingCIDR=10.0.0.0":          "ipv4NativeRoutingCIDR",
		"devices=[eth0, averyverylongdevicename]": "devices",
		"image.repostory=x":                       "repostory",
		"image.digest=sha256:12":                  "image/digest",
		"operator.replicas=-1":                    "operator/replicas",
		"nodeCleanup.patience=soon":               "nodeCleanup/patience",
		"myelin.nodeName=n1":                      "myelin/nodeName",
		"myelin.runDir=run":                       "myelin/runDir",
		"securityContext.privileged=maybe":        "securityContext/privileged",
		"tolerations=all":                         "tolerations",
	} {
		values, err := Values(nil, []string{set})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := helm(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: Helm says %v", set, err)
		}
		_, err = Render(Options{Release: "myelin", Namespace: "kube-system", Version: "1.2.3", Values: values})
		if err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(want, "/", ".")) {
			t.Errorf("--set %s: Render says %v", set, err)
		}
	}
}

// TestMigrating has a node affinity that would stand beside that of the migration.
func TestMigrating(t *testing.T) {
	values := map[string]any{
		"operator": map[string]any{"migrateFromCilium": true},
		"affinity": map[string]any{"nodeAffinity": map[string]any{
			"preferredDuringSchedulingIgnoredDuringExecution": []any{},
		}},
	}
	const want = "affinity.nodeAffinity: can't be given while operator.migrateFromCilium is true"
	if _, err := helm(t, values); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Helm says %v", err)
	}
	if _, err := Render(Options{Release: "myelin", Namespace: "kube-system", Version: "1.2.3",
		Values: values}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Render says %v", err)
	}
}

// candidates are values of every type that there is, good and bad ones of each.
func candidates() (list []any) {
	for _, text := range []string{
		`true`, `false`, `"true"`, `"strict"`, `0`, `1`, `-1`, `255`, `251`, `1024`, `8472`, `65535`, `65536`,
		`16777216`, `16777217`, `1.5`, `0.5`, `1e3`,
		`""`, `"a"`, `"A b"`, `"native"`, `"tunnel"`, `"snat"`, `"opt"`, `"nodes"`, `"kubernetes"`, `"auto"`, `"ipv6"`,
		`"medium"`, `"reset"`, `"always"`, `"5s"`, `"1h1m"`, `"5"`,
		`"10.0.0.0/8"`, `"10.0.0.1"`, `"fd00::/64"`, `"eth0"`, `"eth0,eth1"`, `"eth0 eth+"`, `"/run/x"`, `"run"`,
		`"8472"`, `"30000,32767"`, `"30000"`, `"10000-29999"`,
		`"random"`, `"maglev"`, `"disabled"`, `"veth"`, `"drop"`, `"x.example.org"`, `"-"`,
		`[]`, `["eth0"]`, `["10.0.0.0/8"]`, `[1, 2]`, `[5000]`, `["nodes"]`, `["x/y"]`, `{"x": 1}`,
	} {
		d := json.NewDecoder(strings.NewReader(text))
		var v any
		if err := d.Decode(&v); err != nil {
			panic(err)
		}
		list = append(list, v)
	}
	return list
}

// TestSchemaAndAgent asks schema and agent of each key's values one by one. What the agent takes the schema must take;
// what it refuses and the schema takes is looked at when the agent starts, and must be a matter of detail: hardly any.
func TestSchemaAndAgent(t *testing.T) {
	s, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	both, lax := 0, map[string]int{}
	for _, k := range config.Keys() {
		if strings.HasSuffix(k.Name, "*") || k.Schema == nil || k.Name == "myelin.nodeName" ||
			k.Name == "myelin.manifests" {
			continue
		}
		for _, v := range candidates() {
			takes := v
			parts := strings.Split(k.Name, ".")
			for i := len(parts) - 1; i >= 0; i-- {
				takes = map[string]any{parts[i]: takes}
			}
			data, err := json.Marshal(takes)
			if err != nil {
				t.Fatal(err)
			}
			agent, schema := refusal(k.Name, data), check(s, takes.(map[string]any))
			switch {
			case agent == nil && schema != nil:
				t.Errorf("%s: the agent takes it, the schema says %v", data, schema)
			case agent != nil && schema == nil:
				lax[k.Name]++
				t.Logf("%s: the schema takes it, the agent says %v", data, agent)
			default:
				both++
			}
		}
	}
	t.Logf("they agree about %d values, the agent alone refuses some of %d keys", both, len(lax))
	if both < 5000 || len(lax) > 20 {
		t.Errorf("they agree about %d values; keys of which the agent alone refuses some: %v", both, lax)
	}
}

// refusal is what the agent says of one key; that values contradict others is no concern here.
func refusal(key string, data []byte) error {
	_, err := config.Parse(data, "values")
	problems, ok := err.(config.Problems)
	if err == nil || !ok {
		return err
	}
	for _, p := range problems {
		if p.Key == key && !strings.Contains(p.Reason, " is set by ") {
			return fmt.Errorf("%w", p)
		}
	}
	return nil
}

// TestExplained: Helm, which prints what the schema's keywords say and no descriptions, tells what is wanted, or
// why a value is refused.
func TestExplained(t *testing.T) {
	for set, want := range map[string]string{
		"egressGateway.enabled=true":           "false (not yet: egress gateways)",
		"iptablesRandomFully=true":             "refused: no iptables rule is ever written",
		"myelin.runDir=run":                    "an absolute path",
		"devices=[averyverylongdevicename]":    "a list of devices",
		"ipv4NativeRoutingCIDR=10.0.0.0":       "a CIDR of IPv4",
		"nodePort.range=30000":                 "a range of ports such as 30000,32767",
		"k8sServiceHost=https://192.0.2.1":     "a host name or an IP address, without https:// and without a port",
		"k8sServiceHost=192.0.2.1:6443":        "a host name or an IP address, without https:// and without a port",
		"myelin.prometheus.address=everywhere": "an IP address of the node, or nothing",
		"updateStrategy.type=Recreate":         "'RollingUpdate', 'OnDelete'",
		"operator.updateStrategy.type=Rolling": "'RollingUpdate', 'Recreate'",
	} {
		values, err := Values(nil, []string{set})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := helm(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: Helm says %v, want %q", set, err, want)
		}
	}
}
