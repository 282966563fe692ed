package labtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCompletion asks for the words that a shell offers, as its script does: by the hidden command __complete. They
// are the agent's.
func TestCompletion(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1, values: map[string]any{"kubeProxyReplacement": true}})
	const service = "default/web"
	pod := c.Pod("a1").Name()
	check(t, os.WriteFile(filepath.Join(c.Manifests(), "web.yaml"), []byte(serviceYAML("web", 10, "")), 0o600))
	eventually(t, "the Service is known", 10*time.Second, func() error {
		if out := c.mustCLI("node1", "service", "list"); !strings.Contains(out, service) {
			return errors.New(out)
		}
		return nil
	})
	for line, want := range map[string][]string{
		"endpoint get":            {"\t" + pod},
		"policy get":              {pod},
		"table show":              {"endpoints\t", "drops", "log"},
		"map dump":                {"flows\t", "endpoints\t"},
		"identity get":            {"2\treserved:world"},
		"monitor --pod":           {pod},
		"policy trace --from":     {pod, "world", "node/node1"},
		"service get":             {service},
		"endpoint list --filter":  {"Pod=", "State~"},
		"status --output":         {"json", "jsonpath="},
		"config view":             {"routingMode"},
		"lab agent restart":       {"node1"},
		"lab exec":                {"node1", "world", pod},
		"agent --log-format":      {"json"},
		"pod list -f Namespace=d": {"Namespace=default"},
	} {
		args := append([]string{"__complete"}, strings.Fields(line)...)
		if !strings.Contains(line, "=") {
			args = append(args, "")
		}
		if strings.HasPrefix(line, "lab ") {
			args = append([]string{"__complete", "lab", "--dir", filepath.Dir(c.Dir()), "--name", c.Name()},
				args[2:]...)
		}
		got := "\n" + c.mustCLI("node1", args...)
		for _, w := range want {
			if !strings.Contains(got, w) || !strings.HasPrefix(w, "\t") && !strings.Contains(got, "\n"+w) {
				t.Errorf("%s: no %q in %s", line, w, got)
			}
		}
	}
	// What takes no more arguments completes none, nor does a command without an answer.
	for _, line := range []string{"endpoint get 2", "endpoint list", "--socket /nonexistent/s endpoint get"} {
		args := append([]string{"__complete"}, strings.Fields(strings.TrimPrefix(line, "--socket /nonexistent/s "))...)
		if strings.HasPrefix(line, "--socket") {
			args = append(args, "--socket", "/nonexistent/s")
		}
		if got := c.mustCLI("node1", append(args, "")...); !strings.HasPrefix(got, ":4\n") {
			t.Errorf("%s: %s", line, got)
		}
	}
}
