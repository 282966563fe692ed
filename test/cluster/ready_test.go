package clustertest

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"myelin/bench/results"
)

// record keeps a number where that is asked for.
func record(t *testing.T, r results.Result) {
	t.Helper()
	if os.Getenv("MYELIN_RECORD") != "1" {
		return
	}
	if err := results.Record(filepath.Join("..", "..", "bench", "results.json"), []results.Result{r}); err != nil {
		t.Error(err)
	}
}

// TestReady says how long it took from the agents' start until kubelets called all nodes Ready, and keeps the number
// where that is asked for.
func TestReady(t *testing.T) {
	c := use(t)
	seconds, err := strconv.ParseFloat(c.run("ready"), 64)
	if err != nil || seconds <= 0 {
		t.Fatal(seconds, err)
	}
	t.Logf("ready after %.2f s", seconds)
	if seconds > 30 {
		t.Errorf("nodes were Ready %.1f s after their agents' start", seconds)
	}
	record(t, results.Result{Name: "k8s/ready_s", Value: seconds, Unit: "s"})
}
