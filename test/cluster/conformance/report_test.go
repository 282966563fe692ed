package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"myelin/bench/results"
)

// read is the report in testdata, in ginkgo's form: one spec of each kind.
func read(t *testing.T) outcome {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	specs, err := readReport(data)
	if err != nil {
		t.Fatal(err)
	}
	return tally(specs, leftOut())
}

func names(specs []spec) string {
	var list []string
	for _, s := range specs {
		list = append(list, s.name+": "+s.why)
	}
	return strings.Join(list, "\n")
}

// TestTally: what ran is counted whatever it is about; of what did not, only network specs that have a reason are told.
func TestTally(t *testing.T) {
	o := read(t)
	ran := []string{
		"[SynchronizedBeforeSuite]: no nodes",
		"[sig-network] DNS should answer [Conformance]: ",
		"[sig-network] Netpol should deny [Feature:NetworkPolicy]: no connection expected",
		"[sig-network] Services should be up: service verification failed",
	}
	if got := names(o.ran); got != strings.Join(ran, "\n") {
		t.Errorf("ran:\n%s\nwant:\n%s", got, strings.Join(ran, "\n"))
	}
	const left = `[sig-network] Services should ask a cloud: Only supported for providers [gce]
[sig-network] Services should do sctp [Feature:SCTPConnectivity]: needs SCTP in the kernel, which this machine's has not; test/lab's TestSCTP does the same in a VM`
	if got := names(o.left); got != left {
		t.Errorf("left out:\n%s\nwant:\n%s", got, left)
	}
	if got := len(o.failed()); got != 3 {
		t.Errorf("%d failed, want 3", got)
	}
	want := map[string]float64{"k8s/conformance_passed": 1, "k8s/conformance_failed": 0, "k8s/netpol_passed": 0,
		"k8s/netpol_failed": 1, "k8s/network_passed": 1, "k8s/network_failed": 2}
	for _, r := range o.results() {
		if r != (results.Result{Name: r.Name, Value: want[r.Name], Unit: "specs"}) {
			t.Errorf("%+v, want %g", r, want[r.Name])
		}
		delete(want, r.Name)
	}
	if len(want) > 0 {
		t.Errorf("not recorded: %v", want)
	}
}

func TestMarkdown(t *testing.T) {
	got := string(read(t).markdown())
	for _, want := range []string{
		"| [Conformance] | 1 | 0 |\n| network policies | 0 | 1 |\n",
		"| DNS should answer [Conformance] | passed | 12 |\n",
		"| Services should be up | timedout | 3 |\n",
		"| Services should do sctp [Feature:SCTPConnectivity] | needs SCTP in the kernel, which this machine's has " +
			"not; test/lab's TestSCTP does the same in a VM |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "sig-storage") {
		t.Errorf("specs of others are in\n%s", got)
	}
}

// TestSelection: names of SCTP in policies need no SCTP in the kernel, and run.
func TestSelection(t *testing.T) {
	for name, left := range map[string]bool{
		"[sig-network] Netpol NetworkPolicy between server and client should not mistakenly treat 'protocol: SCTP' " +
			"as 'protocol: TCP'": false,
		"[sig-network] Netpol [Feature:SCTPConnectivity] [LinuxOnly] should support a " +
			"'default-deny-ingress' policy": true,
		"[sig-network] LoadBalancers [Feature:LoadBalancer] should handle finalizers": true,
		"[sig-network] Services should be able to update service type to NodePort":    false,
	} {
		if got := (spec{name: name}).reason(leftOut()); (got != "") != left {
			t.Errorf("%s: left out because %q, want %v", name, got, left)
		}
	}
	if _, err := readReport([]byte("{")); err == nil || !strings.Contains(err.Error(), "report") {
		t.Errorf("a broken report: %v", err)
	}
}
