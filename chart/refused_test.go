package chart

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"myelin/config"
)

// TestRefused has Helm and Render refuse values, with the place in what they say.
func TestRefused(t *testing.T) {
	for set, want := range map[string]string{
		"routingMode=tunel":                       "routingMode",
		"bpf.ctTcpMax=12":                         "bpf/ctTcpMax",
		"bpf.ctTcpMax=many":                       "bpf/ctTcpMax",
		"ipv6.enabled=yes please":                 "ipv6/enabled",
		"kubeProxyReplacement=strict":             "kubeProxyReplacement",
		"encryption.enabled=true":                 "encryption/enabled",
		"hubble.relay.enabled=true":               "hubble/relay/enabled",
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
		_, err = Render(Options{Release: "myelin", Namespace: "kube-system", Values: values})
		if err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(want, "/", ".")) {
			t.Errorf("--set %s: Render says %v", set, err)
		}
	}
}

// candidates are values of every type that there is, good and bad ones of each.
func candidates() (list []any) {
	for _, text := range []string{
		`true`, `false`, `"true"`, `"strict"`, `0`, `1`, `-1`, `255`, `251`, `1024`, `8472`, `65535`, `65536`, `16777216`, `16777217`, `1.5`, `0.5`, `1e3`,
		`""`, `"a"`, `"A b"`, `"native"`, `"tunnel"`, `"snat"`, `"opt"`, `"nodes"`, `"kubernetes"`, `"auto"`, `"ipv6"`, `"medium"`, `"reset"`, `"always"`, `"5s"`, `"1h1m"`, `"5"`,
		`"10.0.0.0/8"`, `"10.0.0.1"`, `"fd00::/64"`, `"eth0"`, `"eth0,eth1"`, `"eth0 eth+"`, `"/run/x"`, `"run"`, `"8472"`, `"30000,32767"`, `"30000"`, `"10000-29999"`,
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

// TestSchemaAndAgent asks schema and agent of each key's values one by one. What the agent takes the schema must take; what it refuses and the schema
// takes is looked at when the agent starts, and must be a matter of detail: hardly any.
func TestSchemaAndAgent(t *testing.T) {
	s, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	both, lax := 0, map[string]int{}
	for _, k := range config.Keys() {
		if strings.HasSuffix(k.Name, "*") || k.Schema == nil || k.Name == "myelin.nodeName" || k.Name == "myelin.manifests" {
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
