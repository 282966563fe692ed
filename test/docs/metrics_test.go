package docstest

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestMetrics: what docs/metrics.md lists is what the agent and the operator have in their source, and nothing of
// theirs is missing. The lab and the tests of the operator look at what they serve.
func TestMetrics(t *testing.T) {
	tr := newTree(t)
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, name := range regexp.MustCompile("`(myelin_[a-z_]+)`").FindAllStringSubmatch(string(doc), -1) {
		listed[name[1]] = true
	}
	served := map[string]bool{}
	for file, text := range tr.text {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		switch {
		case strings.HasPrefix(file, "agent/"), strings.Contains(text, "feature.Sink"):
			for _, name := range regexp.MustCompile(`"(myelin_[a-z_]+)"`).FindAllStringSubmatch(text, -1) {
				served[name[1]] = true
			}
		case file == "operator/metrics.go":
			for _, name := range regexp.MustCompile(`(?:vec|one)\("([a-z_]+)"|Name: "([a-z_]+)"`).FindAllStringSubmatch(
				text,
				-1) {
				served["myelin_operator_"+name[1]+name[2]] = true
			}
		}
	}
	if len(served) < 40 {
		t.Errorf("only %d metrics are found in the source", len(served))
	}
	for name := range served {
		if !listed[name] {
			t.Errorf("docs/metrics.md does not list %s", name)
		}
	}
	for name := range listed {
		if !served[name] {
			t.Errorf("docs/metrics.md lists %s, which nothing serves", name)
		}
	}
}
