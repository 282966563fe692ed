package kube

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/bench/results"
)

// TestScale: an agent in a cluster of 100 nodes, 2,000 pods and 200 Services; ten times as many where what was
// measured is kept. What it takes of memory, also while it is told all anew, and how often it
// asks the server, which doesn't grow with what there is.
func TestScale(t *testing.T) {
	if !inside(t) {
		return
	}
	n := newNode(t, "")
	all := population{nodes: 100, pods: 2000, services: 200, apps: 200, namespaces: 20, backends: 5}
	if os.Getenv(recordEnv) == "1" {
		all.nodes, all.pods, all.services = 10*all.nodes, 10*all.pods, 10*all.services
	}
	began := time.Now()
	all.fill(t, n.server)
	t.Logf("measured: filled in %s", time.Since(began).Round(time.Second))

	n.launch()
	n.says("ready ", "synced")
	synced := time.Since(n.began)
	n.measures(fmt.Sprintf(`myelin_kubernetes_objects{kind="Pod"} %d`, all.pods),
		fmt.Sprintf(`myelin_kubernetes_objects{kind="Service"} %d`, all.services+1))
	time.Sleep(settled)
	rss, peak := n.memory("VmRSS"), n.memory("VmHWM")
	asked := n.asked(t)

	n.server.Kill()
	n.says("no answer for")
	n.server.Resume()
	n.says("synced", "heard of 0s ago")
	time.Sleep(settled)
	t.Logf("measured: %d kB after all was told anew, at most %d kB; %v", n.memory("VmRSS"), n.memory("VmHWM"),
		n.server.Requests())
	peak = max(peak, n.memory("VmHWM"))
	n.record(
		results.Result{Name: "k8s/rss_mb_1000_nodes", Value: megabytes(rss), Unit: "MB"},
		results.Result{Name: "k8s/rss_peak_mb_1000_nodes", Value: megabytes(peak), Unit: "MB"},
		results.Result{Name: "k8s/synced_s_1000_nodes", Value: synced.Seconds(), Unit: "s"},
		results.Result{Name: "k8s/api_requests_per_node", Value: float64(asked), Unit: "requests"},
	)
}

// recordEnv is 1 where what is measured is kept in bench/results.json.
const recordEnv = "MYELIN_RECORD"

// settled is how long the agent is given to do what it was told, and to give back
// what that took of memory.
const settled = 25 * time.Second

func megabytes(kb int) float64 { return float64(kb) * 1024 / 1e6 }

// asked counts the agent's requests, and wants none but lists and watches of whole kinds, each once, and now and then a
// report of policies, which are not read here.
func (n *node) asked(t *testing.T) (total int) {
	t.Helper()
	requests := n.server.Requests()
	for _, what := range slices.Sorted(maps.Keys(requests)) {
		count := requests[what]
		total += count
		words := strings.Fields(what)
		if what == "patch ciliumnodes node1" && count <= 4 {
			continue
		}
		if len(words) != 2 || words[0] != "list" && words[0] != "watch" && words[0] != "stream" || count > 2 {
			t.Errorf("%q was asked %d times", what, count)
		}
	}
	t.Logf("measured: requests %v", requests)
	return total
}

// record prints what was measured, and keeps it where that is asked for.
func (n *node) record(list ...results.Result) {
	n.Helper()
	for _, r := range list {
		n.Logf("measured: %s: %.1f %s", r.Name, r.Value, r.Unit)
	}
	if n.Failed() || os.Getenv(recordEnv) != "1" {
		return
	}
	if err := results.Record(filepath.Join("..", "..", "bench", "results.json"), list); err != nil {
		n.Error(err)
	}
}
