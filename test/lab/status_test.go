package labtest

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	doctor "myelin/doctor/check"
	"myelin/status"
)

// TestStatus: what a report says is what the mode is, and nothing is broken.
func TestStatus(t *testing.T) {
	for _, test := range []struct {
		mode    string
		values  map[string]any
		feature string
		state   status.State
		chosen  string
	}{
		{"native", nil, "Direct Node Routes", status.OK, "to 1 of 1 other node"},
		{"legacy", map[string]any{"bpf.enableTCX": false}, "Attach Mode", status.OK, "Legacy TC"},
		{"vxlan6", nil, "Routing", status.OK, "Network: Tunnel [vxlan port 8472 over ipv6]   Host: BPF"},
	} {
		t.Run(test.mode, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: modeNamed(test.mode), values: test.values})
			var r status.Report
			if code := c.answers(&r, "status", "--wait", "--wait-duration",
				patience(20*time.Second).String()); code != 0 {
				t.Errorf("exit status %d: %+v", code, r.Features)
			}
			f := r.Feature(test.feature)
			if f == nil || f.State != test.state || f.Chosen != test.chosen {
				t.Errorf("%s is %+v, want %s %q", test.feature, f, test.state, test.chosen)
			}
			if ready := r.Feature("Myelin"); r.Node != "node1" || r.ReadyMs <= 0 || ready.State != status.OK {
				t.Errorf("node %s, ready after %v ms, %+v", r.Node, r.ReadyMs, ready)
			}
			for _, d := range r.Devices {
				if len(d.Hooks) == 0 || len(d.Missing)+len(d.Foreign) > 0 {
					t.Errorf("device %+v", d)
				}
			}
		})
	}
}

// TestStatusBroken spoils a node, and looks whether status and doctor find it.
func TestStatusBroken(t *testing.T) {
	t.Parallel()
	c := up(t, setup{})
	n := c.Node("node1")
	var r status.Report
	if code := c.answers(&r, "status"); code != 0 {
		t.Fatalf("exit status %d before anything is spoilt: %+v", code, r.Features)
	}
	before := len(r.Features)
	// An unpinned link ends with its last descriptor, and the program hangs no more.
	hook := filepath.Join(n.BPFRoot(), "myelin", "links", "eth0-from_wire")
	if err := os.Remove(hook); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	} else if err != nil {
		c.inNode(t, "tc", "filter", "del", "dev", "eth0", "ingress")
	}
	manifests := filepath.Join(n.Dir(), "..", "..", "manifests", "bad.yaml")
	if err := os.WriteFile(manifests, []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: BAD_}\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	c.inNode(t, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter; echo 1 > "+
		"/proc/sys/net/ipv4/conf/eth0/rp_filter")
	eventually(t, "status tells what is broken", 10*time.Second, func() error {
		r = status.Report{}
		code := c.answers(&r, "status")
		text, _ := json.Marshal(r.Features)
		for _, want := range []string{"eth0: from_wire is not attached",
			"refused: bad.yaml: Pod default/BAD_: metadata.name"} {
			if code != 1 || r.State != status.Broken || !strings.Contains(string(text), want) {
				return errors.New("no " + want + " in " + string(text))
			}
		}
		return nil
	})
	if len(r.Features) != before {
		t.Errorf("%d features, %d before", len(r.Features), before)
	}
	var findings []doctor.Finding
	if code := c.answers(&findings, "doctor"); code != 1 {
		t.Errorf("doctor: exit status %d", code)
	}
	for _, want := range []doctor.Finding{
		{Level: doctor.Fail, What: "eth0: from_wire is not attached"},
		{Level: doctor.Warn, What: "reverse path filtering is strict (rp_filter 1) on eth0"},
		{Level: doctor.OK, What: "BPF file system at " + n.BPFRoot()}, // the agent's, not the default
	} {
		if !found(findings, want) {
			t.Errorf("no %s with %q in %+v", want.Level, want.What, findings)
		}
	}
}

func found(findings []doctor.Finding, want doctor.Finding) bool {
	for _, f := range findings {
		if f.Level == want.Level && strings.Contains(f.What, want.What) {
			return true
		}
	}
	return false
}

// answers runs a command of myelin in the first node, reads its JSON, and
// returns its exit status.
func (c *cluster) answers(into any, command string, args ...string) int {
	c.t.Helper()
	n := c.Node("node1")
	args = append([]string{filepath.Join(binDir(), "myelin"), command, "-o", "json", "--socket", n.Socket()}, args...)
	var out []byte
	var exit *exec.ExitError
	err := n.Do(func() (err error) {
		out, err = exec.CommandContext(c.t.Context(), args[0], args[1:]...).Output()
		return err
	})
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(out, into); err != nil {
		c.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	if exit != nil {
		return exit.ExitCode()
	}
	return 0
}

func (c *cluster) inNode(t *testing.T, args ...string) {
	t.Helper()
	if _, err := c.Node("node1").Exec(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}
