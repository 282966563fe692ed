package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"myelin/config"
	"myelin/status"
)

func served() *status.Report {
	return &status.Report{
		Node: "node1", Version: "v1.2.3", Kernel: "6.18.0", ReadyMs: 400, State: status.Fallback,
		Features: []status.Feature{
			{Name: "Routing", State: status.OK, Chosen: "Network: Native   Host: BPF"},
			{Name: "Host Routing", State: status.Fallback, Chosen: "Legacy"},
		},
		Settings: []config.Setting{
			{Key: "bpf.masquerade", Value: "true", Default: "true", Source: "default"},
			{Key: "bpf.natMax", Value: "1024", Default: "65536", Source: "/etc/myelin.yaml"},
			{Key: "routingMode", Value: "tunnel", Default: "native", Source: "/etc/myelin.yaml"},
		},
	}
}

func TestVersion(t *testing.T) {
	socket := serveFake(t, &fake{report: served()})
	out, err := runRoot("version", "--socket", socket)
	lines := strings.Split(out, "\n")
	if err != nil || len(lines) != 8 ||
		strings.Join(
			lines[4:],
			"\n",
		) !=
			"Features:\n  Routing        ok         Network: Native   Host: BPF\n  Host Routing   fallback   Legacy\n" {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, want := range []string{"Client:   " + buildVersion() + " (" + runtime.Version(),
		"Agent:    v1.2.3 (node node1)", "Kernel:   "} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %q, want %q", lines[i], want)
		}
	}
	var v versions
	if out, err := runRoot("version", "--socket", socket, "-o", "json"); err != nil || json.Unmarshal([]byte(out),
		&v) != nil ||
		v.Agent.Version != "v1.2.3" || v.Kernel.Release == "" ||
		len(v.Features) != 2 ||
		v.Features[1].State != status.Fallback {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := runRoot("version", "--socket", socket, "-o", "yaml"); err != nil ||
		!strings.Contains(out, "agent:\n  node: node1\n  ready: true\n  version: v1.2.3\n") {
		t.Errorf("%v: %s", err, out)
	}
	none := filepath.Join(t.TempDir(), "none")
	if out, err := runRoot("version", "--client", "--socket", none, "-o", "jsonpath={.client.version}"); err != nil ||
		out != buildVersion() {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := runRoot("version", "--socket", none); err == nil ||
		!strings.Contains(err.Error(), "no agent answers") ||
		!strings.Contains(out, "Client:") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestConfigView(t *testing.T) {
	socket := serveFake(t, &fake{report: served()})
	for args, want := range map[string]string{
		"--changed": "Key           Value    Source\nbpf.natMax    1024     /etc/myelin.yaml\nroutingMode " +
			"  tunnel   /etc/myelin.yaml\n",
		"bpf": "Key              Value   Source\nbpf.masquerade   true    default\nbpf.natMax       " +
			"1024    /etc/myelin.yaml\n",
		"routingMode -o wide": "Key           Value    Source             Default\nroutingMode   tunnel   " +
			"/etc/myelin.yaml   native\n",
		"routingMode -o yaml": "- default: native\n  key: routingMode\n  source: /etc/myelin.yaml\n  value: " +
			"tunnel\n",
		"-o jsonpath={[*].key}":    "bpf.masquerade bpf.natMax routingMode",
		"--changed bpf.masquerade": "Key   Value   Source\n",
		"bpf.natMax routingMode -o json": "[\n  {\n    \"key\": \"bpf.natMax\",\n    \"value\": \"1024\",\n    " +
			"\"default\": \"65536\",\n    \"source\": \"/etc/myelin.yaml\"\n  },\n" +
			"  {\n    \"key\": \"routingMode\",\n    \"value\": \"tunnel\",\n    \"default\": \"native\",\n    " +
			"\"source\": " +
			"\"/etc/myelin.yaml\"\n  }\n]\n",
	} {
		out, err := runRoot(append([]string{"config", "view", "--socket", socket}, strings.Fields(args)...)...)
		if err != nil || out != want {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", args, err, out, want)
		}
	}
	if _, err := runRoot("config", "view", "--socket", socket, "routingMod"); err == nil ||
		!strings.Contains(err.Error(), "routingMod: unknown key") ||
		!strings.Contains(err.Error(), "routingMode") {
		t.Errorf("%v", err)
	}
}

// TestConfigViewFile: without an agent, a file says what an agent would run with.
func TestConfigViewFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "myelin.yaml")
	if err := os.WriteFile(file, []byte("routingMode: tunnel\nipv4: {enabled: false}\nipv6: {enabled: true}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	out, err := runRoot(
		"config",
		"view",
		"--config",
		file,
		"underlayProtocol",
		"routingMode",
		"ipv4.enabled",
		"MTU",
		"-o",
		`jsonpath={range [*]}{.key}={.value} {.source}{"\n"}{end}`,
	)
	want := "underlayProtocol=ipv6 derived\nroutingMode=tunnel " + file + "\nipv4.enabled=false " + file +
		"\nMTU=0 default\n"
	if err != nil || out != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, out, want)
	}
	if err := os.WriteFile(file, []byte("routingMod: tunnel\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := runRoot("config", "view", "--config", file); err == nil ||
		!strings.Contains(err.Error(), file+": routingMod: unknown key") {
		t.Errorf("%v", err)
	}
}

func TestLogFormatFlag(t *testing.T) {
	for _, command := range []string{"agent", "operator"} {
		if _, err := runRoot(command, "--log-format", "xml"); err == nil ||
			!strings.Contains(err.Error(), "--log-format: myelin.logFormat: ") {
			t.Errorf("%s: %v", command, err)
		}
	}
}
