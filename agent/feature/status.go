package feature

import (
	"fmt"
	"iter"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
)

// State is the state of a feature.
type State string

// The states, best first.
const (
	OK       State = "ok"
	Off      State = "off"      // not configured
	Fallback State = "fallback" // works, but less well than configured or than possible
	Broken   State = "broken"   // something that is configured does not work
)

// Worse returns the worse of two states.
func (s State) Worse(other State) State {
	rank := map[State]int{Off: 1, OK: 2, Fallback: 3, Broken: 4}
	if rank[other] > rank[s] {
		return other
	}
	return s
}

// Status is one line of `myelin status`.
type Status struct {
	// Name is the name that `cilium-dbg status` has for it, if it has one.
	Name  string `json:"name"`
	State State  `json:"state"`
	// Wanted is the configuration: "routingMode: native".
	Wanted string `json:"wanted,omitempty"`
	Chosen string `json:"chosen"`
	Why    string `json:"why,omitempty"`
	// Cost is what the choice costs compared to the best that Myelin can do.
	Cost string `json:"cost,omitempty"`
	// Problems say what is broken or falls back, one each.
	Problems []string `json:"problems,omitempty"`
}

// Break adds a problem that makes the feature broken.
func (s *Status) Break(problem string) { s.State, s.Problems = Broken, append(s.Problems, problem) }

// FallBack adds a reason why the feature works less well than it could.
func (s *Status) FallBack(problem string) {
	s.State, s.Problems = s.State.Worse(Fallback), append(s.Problems, problem)
}

// Few is how many problems of one kind a line shows.
const Few = 3

// SeeVerbose ends a problem that stands for others, which --verbose lists.
const SeeVerbose = " (--verbose)"

// First adds the first problems of a list with add, and how many more of all
// there are.
func First(list []string, all int, add func(string)) {
	for i, text := range list {
		if i == Few {
			add(fmt.Sprintf("… and %d more", all-i) + SeeVerbose)
			return
		}
		add(strings.ReplaceAll(text, "\n", " "))
	}
}

// Plural is "1 noun" or "2 nouns".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// TableCount is a table of desired state and how much of it the kernel has.
type TableCount struct {
	Name    string   `json:"name"`
	Rows    int      `json:"rows"`
	Done    int      `json:"done"`
	Pending int      `json:"pending"`
	Failed  int      `json:"failed"`
	Errors  []string `json:"errors,omitempty"` // of rows, at most MaxErrors
}

// MaxErrors limits the errors of one table in a report.
const MaxErrors = 20

// Count counts the rows of a table by their status.
func Count[Row any](txn statedb.ReadTxn, t statedb.Table[*Row], status func(*Row) *reconciler.Status) TableCount {
	return countTable(t.Name(), t.All(txn), status)
}

// countTable counts rows of a table by their status.
func countTable[Row any](name string, rows iter.Seq2[*Row, statedb.Revision],
	status func(*Row) *reconciler.Status,
) TableCount {
	t := TableCount{Name: name}
	for row := range rows {
		t.Rows++
		s := status(row)
		switch s.Kind {
		case reconciler.StatusKindDone, reconciler.StatusKindRefreshing:
			t.Done++
		case reconciler.StatusKindError:
			t.Failed++
			if len(t.Errors) < MaxErrors {
				t.Errors = append(t.Errors, s.GetError())
			}
		default:
			t.Pending++
		}
	}
	return t
}
