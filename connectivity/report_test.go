package connectivity

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	var report Report
	var got strings.Builder
	for _, r := range []Result{
		{Name: "pod-to-pod/same-node", Outcome: Passed, Rounds: 1, Took: 0.12},
		{Name: "service/hairpin", Outcome: Passed, Rounds: 3, Took: 1.5},
		{Name: "world", Outcome: Skipped, Reason: "--external-target is not given"},
		{Name: "host-port", Outcome: Failed, Reason: "pod t/hostport doesn't run on node n2: NodePorts"},
		{Name: "policy/deny-all", Outcome: Failed, Took: 21, Failures: []Failure{
			{Step: "with the policy", From: "t/client on n1", To: "near by http", URL: "http://10.0.0.3:8080/",
				Problem:     "expected no answer, but there was one from near",
				Explanation: []string{"node n1: no agent runs there"}},
		}},
	} {
		report.add(r)
		got.WriteString(r.text())
	}
	report.Took = 22.7
	report.summary(&got)
	want := `passed  pod-to-pod/same-node               0.1 s
passed  service/hairpin                    1.5 s, at attempt 3
skipped world                              --external-target is not given
failed  host-port                          pod t/hostport doesn't run on node n2: NodePorts
failed  policy/deny-all                    21.0 s
    t/client on n1 → near by http (http://10.0.0.3:8080/), with the policy
      expected no answer, but there was one from near
      node n1: no agent runs there
2 passed, 2 failed, 1 skipped in 23 s
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

func TestList(t *testing.T) {
	var got bytes.Buffer
	if err := List(&got, Options{Test: regexp.MustCompile("^dns/"), Skip: regexp.MustCompile("headless")}); err != nil {
		t.Fatal(err)
	}
	want := "dns/cluster                        Pods are told the address of a Service of the cluster.\n"
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

// TestNoCluster: without a kubeconfig it is said what is needed.
func TestNoCluster(t *testing.T) {
	_, err := connect(Options{KubeConfig: t.TempDir() + "/none"})
	if err == nil || !strings.Contains(err.Error(), "a lab of `myelin lab` has no API server") {
		t.Errorf("got %v", err)
	}
}
