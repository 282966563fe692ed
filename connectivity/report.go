package connectivity

import (
	"fmt"
	"io"
	"strings"
)

// Outcome is that of a test.
type Outcome string

// Outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Report is what came of a run.
type Report struct {
	Namespace string   `json:"namespace"`
	Nodes     []string `json:"nodes"`
	Image     string   `json:"image"`
	Tests     []Result `json:"tests"`
	Passed    int      `json:"passed"`
	Failed    int      `json:"failed"`
	Skipped   int      `json:"skipped"`
	// Took is in seconds.
	Took float64 `json:"took"`
	// Interrupted runs have no results of the other tests.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Result is that of one test.
type Result struct {
	Name    string  `json:"name"`
	About   string  `json:"about"`
	Outcome Outcome `json:"outcome"`
	// Reason is why it was skipped, or could not be made.
	Reason   string    `json:"reason,omitempty"`
	Failures []Failure `json:"failures,omitempty"`
	// Rounds is how often the checks were made until all were right at once, or the
	// time was over.
	Rounds int `json:"rounds,omitempty"`
	// Took is in seconds.
	Took float64 `json:"took"`
}

// Failure is a check that didn't hold.
type Failure struct {
	// Step says in which state, e.g. "with the policy"; may be empty.
	Step string `json:"step,omitempty"`
	From string `json:"from"`
	To   string `json:"to"`
	URL  string `json:"url,omitempty"` // empty: it is about what was captured
	// Problem is what was expected, and what happened.
	Problem string `json:"problem"`
	// Explanation is what the agents of both ends say; empty where they were not asked.
	Explanation []string `json:"explanation,omitempty"`
}

func (r *Report) add(result Result) {
	r.Tests = append(r.Tests, result)
	switch result.Outcome {
	case Passed:
		r.Passed++
	case Failed:
		r.Failed++
	case Skipped:
		r.Skipped++
	}
}

// text is the result as lines: one, and those of what is wrong.
func (r *Result) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s%-34s", r.Outcome, r.Name)
	switch {
	case r.Reason != "":
		fmt.Fprintf(&b, " %s", r.Reason)
	case r.Rounds > 1 && r.Outcome == Passed:
		fmt.Fprintf(&b, " %.1f s, at attempt %d", r.Took, r.Rounds)
	default:
		fmt.Fprintf(&b, " %.1f s", r.Took)
	}
	b.WriteByte('\n')
	for _, f := range r.Failures {
		fmt.Fprintf(&b, "    %s → %s", f.From, f.To)
		if f.URL != "" {
			fmt.Fprintf(&b, " (%s)", f.URL)
		}
		if f.Step != "" {
			fmt.Fprintf(&b, ", %s", f.Step)
		}
		fmt.Fprintf(&b, "\n      %s\n", f.Problem)
		for _, line := range f.Explanation {
			fmt.Fprintf(&b, "      %s\n", line)
		}
	}
	return b.String()
}

// summary is the last line.
func (r *Report) summary(w io.Writer) {
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped in %.0f s\n", r.Passed, r.Failed, r.Skipped, r.Took)
}
