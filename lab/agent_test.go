package lab

import (
	"context"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

func TestAgent(t *testing.T) {
	t.Parallel()
	opts := testOptions(t, manifestsFor(t))
	opts.Agent, opts.Conflist = opts.Binary, nil
	opts.Config = opts.Manifests + ".config"
	if err := os.WriteFile(opts.Config, []byte("routingMode: native\nbpf.masquerade: true\ncni: {exclusive: true}\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	opts.Values = map[string]any{"MTU": 1400, "bpf.monitorAggregation": "none"}
	l := up(t, opts)
	n := l.Node("a")
	data, err := os.ReadFile(n.path("agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := yaml.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"routingMode": "native", "MTU": 1400.0,
		"bpf": map[string]any{"masquerade": true, "monitorAggregation": "none"},
		"cni": map[string]any{"exclusive": true, "confPath": n.path("cni", "net.d"), "binPath": n.path("cni", "bin")},
		"myelin": map[string]any{
			"nodeName": "a", "runDir": n.RunDir(), "bpfRoot": n.BPFRoot(), "cgroupRoot": n.Cgroup(),
			"manifests": l.Manifests(),
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("configuration %v, want %v", got, want)
	}

	testAgentLife(t, l, n)
}

// testAgentLife ends and starts the agent of n in every way.
func testAgentLife(t *testing.T, l *Lab, n *Node) {
	ctx := t.Context()
	first := n.AgentProcess()
	if err := n.StartAgent(ctx, nil); err == nil {
		t.Error("two agents on a node")
	}
	if err := n.RestartAgent(ctx); err != nil {
		t.Error(err)
	}
	if second := n.AgentProcess(); first.Alive() || !second.Alive() {
		t.Errorf("restart: %v alive %v, %v alive %v", first, first.Alive(), second, second.Alive())
	}
	if err := n.KillAgent(ctx); err != nil {
		t.Error(err)
	}
	if st, err := l.Status(); err != nil || st.Nodes[0].Agent != "stopped" || st.Nodes[1].Agent != "ready" {
		t.Errorf("status after kill: %+v %v", st, err)
	}
	if err := n.StopAgent(ctx); err != nil {
		t.Errorf("stop of an agent that is gone: %v", err)
	}
	if err := n.StartAgent(ctx, map[string]any{"fail": true}); err == nil ||
		!strings.Contains(err.Error(), "was told to fail") {
		t.Errorf("start of an agent that fails: %v", err)
	}
	if err := n.StartAgent(ctx, nil); err != nil {
		t.Error(err)
	}
	// One that does not end when asked to is reported, not waited for without end.
	if _, err := n.Exec(ctx, "kill", "-STOP", itoa(n.AgentProcess().PID)); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := n.StopAgent(short); err == nil {
		t.Error("a stopped process has ended")
	}
}

func TestSetKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from []map[string]any
		want string // JSON, or an error's text
	}{
		{[]map[string]any{{"a.b": 1}, {"a": map[string]any{"c": 2}}}, `{"a":{"b":1,"c":2}}`},
		{[]map[string]any{{"a": map[string]any{"b.c": 1}}, {"a.b.d": nil}}, `{"a":{"b":{"c":1,"d":null}}}`},
		{[]map[string]any{{"a": []any{"x"}}, {"a": []any{"y"}}}, `{"a":["y"]}`},
		{[]map[string]any{{"a": 1}, {"a.b": 2}}, `a.b: a has the value 1 already`},
	} {
		keys := map[string]any{}
		got := ""
		for _, from := range c.from {
			if err := setKeys(keys, from); err != nil {
				got = err.Error()
			}
		}
		if got == "" {
			data, err := yaml.Marshal(keys)
			if err != nil {
				t.Fatal(err)
			}
			if data, err = yaml.YAMLToJSON(data); err != nil {
				t.Fatal(err)
			}
			got = string(data)
		}
		if got != c.want {
			t.Errorf("%v: %s, want %s", c.from, got, c.want)
		}
	}
}
