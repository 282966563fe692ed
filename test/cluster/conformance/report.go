package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"myelin/bench/results"
)

// spec is one of the suite's, and how it ended.
type spec struct {
	name string
	// state is ginkgo's: passed, failed, timedout, panicked, skipped, …
	state string
	took  time.Duration
	// why it failed or skipped itself; empty for one that was not selected
	why string
}

// readReport reads the file that ginkgo writes for --json-report.
func readReport(data []byte) ([]spec, error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("read the suite's report: %w", err)
	}
	var specs []spec
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			if r.LeafNodeType != "It" && r.State == "passed" {
				continue // the suite's own set-up
			}
			name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
			specs = append(specs, spec{name: strings.TrimSpace(name), state: r.State, took: r.RunTime,
				why: firstLine(r.Failure.Message)})
		}
	}
	return specs, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// outcome is a run in numbers.
type outcome struct {
	ran, left []spec
}

// tally sorts specs into those that ran and those that were left out, by a rule or by themselves.
func tally(specs []spec, rules []rule) outcome {
	var o outcome
	for _, s := range specs {
		switch reason := s.reason(rules); {
		case s.state != "skipped" && s.state != "pending":
			o.ran = append(o.ran, s)
		case !s.network():
		case reason != "":
			s.why = reason
			o.left = append(o.left, s)
		case s.why != "":
			o.left = append(o.left, s)
		}
	}
	for _, list := range [][]spec{o.ran, o.left} {
		slices.SortFunc(list, func(a, b spec) int { return cmp.Compare(a.name, b.name) })
	}
	return o
}

func (s spec) failed() bool { return s.state != "passed" }

func (o outcome) failed() []spec {
	return slices.DeleteFunc(slices.Clone(o.ran), func(s spec) bool { return !s.failed() })
}

// count is how many of a kind passed and failed.
func (o outcome) count(kind func(spec) bool) (passed, failed int) {
	for _, s := range o.ran {
		switch {
		case !kind(s):
		case s.failed():
			failed++
		default:
			passed++
		}
	}
	return passed, failed
}

func (o outcome) results() []results.Result {
	var list []results.Result
	for _, kind := range []struct {
		name string
		of   func(spec) bool
	}{{"conformance", spec.conformance}, {"netpol", spec.policy}, {"network", spec.network}} {
		passed, failed := o.count(kind.of)
		list = append(list,
			results.Result{Name: "k8s/" + kind.name + "_passed", Value: float64(passed), Unit: "specs"},
			results.Result{Name: "k8s/" + kind.name + "_failed", Value: float64(failed), Unit: "specs"})
	}
	return list
}

func (o outcome) summary(took time.Duration) string {
	var b strings.Builder
	for _, s := range o.failed() {
		fmt.Fprintf(&b, "FAILED %s\n       %s\n", s.name, s.why)
	}
	fmt.Fprintf(&b, "%d passed, %d failed, %d left out, in %v\n", len(o.ran)-len(o.failed()), len(o.failed()),
		len(o.left), took.Round(time.Second))
	return b.String()
}

// markdown is docs/conformance.md.
func (o outcome) markdown() []byte {
	var b bytes.Buffer
	cp, cf := o.count(spec.conformance)
	np, nf := o.count(spec.policy)
	fmt.Fprintf(&b, `# Conformance

Results of upstream's test suite (e2e.test of Kubernetes 1.34.4) on a cluster of three nodes with Myelin and without
kube-proxy. Written by `+"`make conformance`"+`; manual changes would be lost. [test/cluster](../test/cluster/README.md)
describes the cluster.

| specs | passed | failed |
|---|---|---|
| [Conformance] | %d | %d |
| network policies | %d | %d |
| all | %d | %d |

## Results

| spec | result | seconds |
|---|---|---|
`, cp, cf, np, nf, len(o.ran)-len(o.failed()), len(o.failed()))
	for _, s := range o.ran {
		fmt.Fprintf(&b, "| %s | %s | %.0f |\n", cell(s.name), s.state, s.took.Seconds())
	}
	b.WriteString("\n## Left out\n\n| spec | reason |\n|---|---|\n")
	for _, s := range o.left {
		fmt.Fprintf(&b, "| %s | %s |\n", cell(s.name), cell(s.why))
	}
	return b.Bytes()
}

func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(strings.TrimPrefix(text, "[sig-network] "))
}
