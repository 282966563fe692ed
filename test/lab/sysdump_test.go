package labtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"myelin/status/sysdump/sysdumptest"
)

// Secrets that TestSysdump plants.
const (
	plantedPassword  = "tortoise-under-glass"
	plantedData      = "c3dlZXQtY2FyYW1lbA==" // base64 of sweet-caramel
	plantedPlain     = "sweet-caramel"
	plantedWireGuard = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="
	plantedIPsec     = "44434241343332312423222114131211f4f3f2f1"
	plantedToken     = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
	plantedFastOpen  = "01234567-89abcdef-fedcba98-76543210"
)

func plantedManifest() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: kube-system}
data: {keys: %s}
stringData: {ipsec: "3+ rfc4106(gcm(aes)) %s 128", wireguard: %s, token: %s}
---
apiVersion: v1
kind: Service
metadata: {name: planted, namespace: default, annotations: {note: "it is %s", auth: "Bearer %s"}}
spec: {selector: {app: none}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: elsewhere, namespace: default, annotations: {password: %s}, labels: {app: planted}}
spec: {nodeName: nowhere, containers: [{name: a, image: a, args: ["--password=%s"],
  env: [{name: DB_PASSWORD, value: %s}]}]}
`, plantedData, plantedIPsec, plantedWireGuard, plantedToken, plantedPlain, plantedToken,
		plantedPassword, plantedPassword, plantedPassword)
}

// TestSysdump: the archive has what a bug report needs of each node, and none of the secrets that were planted where
// it collects from.
//
//	node1: a1, b1 ── eth0 ── node2: a2, b2
func TestSysdump(t *testing.T) {
	t.Parallel()
	c := up(t, setup{})
	n := c.Node("node1")
	dir := filepath.Join(n.Dir(), "..", "..", "manifests")
	check(t, os.WriteFile(filepath.Join(dir, "planted.yaml"), []byte(plantedManifest()), 0o600))
	// A bad object, whose problem is in the agent's log and in a table.
	check(t, os.WriteFile(filepath.Join(dir, "planted-bad.yaml"), fmt.Appendf(nil,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: \"token=%s\"}\n", plantedPassword), 0o600))
	log, err := os.OpenFile(n.AgentLog(), os.O_APPEND|os.O_WRONLY, 0)
	check(t, err)
	_, err = fmt.Fprintf(
		log,
		"PrivateKey = %s\nkubelet says password=%s and %s\n",
		plantedWireGuard,
		plantedPassword,
		plantedPlain,
	)
	check(t, errors.Join(err, log.Close()))
	c.inNode(t, "sh", "-c", "echo "+plantedFastOpen+" > /proc/sys/net/ipv4/tcp_fastopen_key")
	xfrm := "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x3 reqid 1 mode tunnel aead " +
		"'rfc4106(gcm(aes))' 0x" + plantedIPsec + " 128"
	if out, err := n.Exec(t.Context(), "sh", "-c", xfrm); err != nil {
		t.Logf("the kernel has no IPsec: %v: %s", err, out)
	}
	c.waitFor(t, "planted")

	files := dump(t, c)
	for name, text := range files {
		for _, secret := range []string{
			plantedPassword, plantedData, plantedPlain, plantedWireGuard, plantedIPsec, plantedToken, plantedFastOpen,
			"DCBA4321",
		} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q:\n%.2000s", name, secret, text)
			}
		}
	}
	for _, node := range []string{"node1", "node2"} {
		for _, name := range []string{
			"version.json", "status.json", "status.txt", "config.json", "doctor.json", "doctor.txt", "agent.log",
			"files/agent.log", "pins.txt",
			"tables/endpoints.json", "tables/endpoint-details.json", "tables/drops.json", "tables/metrics.json",
			"tables/flows.json", "tables/maps.json",
			"maps/endpoints.json", "maps/flows.json", "kernel/proc/version", "kernel/sysctl.txt",
			"manifests/planted.yaml",
			"devices/links.json", "devices/routes.json", "devices/neighbours.json", "devices/xfrm.json",
			"bpf/programs.json",
			"bpf/links.json",
		} {
			if files["nodes/"+node+"/"+name] == "" {
				t.Errorf("no %s of %s, or it is empty; failures:\n%s", name, node, files["nodes/"+node+"/failures.txt"])
			}
		}
	}
	c.checkDump(t, files)
}

// checkDump looks whether files have what they are for.
func (c *cluster) checkDump(t *testing.T, files map[string]string) {
	t.Helper()
	a1 := c.Pod("a1").IPv4().String()
	for name, want := range map[string][]string{
		"tables/endpoint-details.json": {a1}, "maps/endpoints.json": {a1}, "devices/routes.json": {a1},
		"status.txt":         {"node1", "Devices"},
		"devices/links.json": {`"Name": "eth0"`}, "bpf/programs.json": {"from_pod"}, "pins.txt": {"/maps/flows\n"},
		"manifests/planted.yaml": {"kind: Secret", "name: keys", "<redacted>", "nodeName: nowhere"},
		"kernel/sysctl.txt":      {"net/ipv4/ip_forward = ", "net/ipv4/tcp_fastopen_key = <redacted>"},
		"agent.log":              {"msg=ready"},
		"files/agent.log":        {"PrivateKey = <redacted>"}, "tables/metrics.json": {"myelin_version"},
	} {
		contains(t, name, files["nodes/node1/"+name], want...)
	}
	var settings []struct{ Key, Value, Source string }
	if err := json.Unmarshal([]byte(files["nodes/node1/config.json"]), &settings); err != nil || len(settings) < 50 {
		t.Errorf("config.json: %v, %d settings", err, len(settings))
	}
	for _, line := range strings.Split(files["nodes/node1/failures.txt"], "\n") {
		if line != "" && !strings.HasPrefix(line, "netfilter/") { // whose tools may lack rights, or their kernel's part
			t.Errorf("not collected: %s", line)
		}
	}
}

// waitFor waits until a Service is known, and with it what else is in its file.
func (c *cluster) waitFor(t *testing.T, service string) {
	t.Helper()
	eventually(t, "the agent reads the manifests", 10e9, func() error {
		for _, node := range []string{"node1", "node2"} {
			if out := c.mustCLI(node, "table", "show", "kubernetes-services"); !strings.Contains(out, service) {
				return fmt.Errorf("no %s at %s: %s", service, node, out)
			}
		}
		return nil
	})
}

// dump runs `myelin sysdump` beside the lab, and unpacks its archive; names are without its root.
func dump(t *testing.T, c *cluster) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	out, err := c.World().Exec(t.Context(), "myelin", "sysdump", "--lab", c.Dir(), "-f", file)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f, err := os.Open(file)
	check(t, err)
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	return sysdumptest.UnpackBelowRoot(t, f)
}
