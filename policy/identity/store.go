package identity

import (
	"fmt"
	"iter"
	"slices"

	"myelin/internal/table/ledger"
)

// record is a line of the state file: a number and whose it is.
type record struct {
	ledger.Head
	Labels []string `json:"labels,omitempty"`
}

// known collects the identities of a file.
type known struct {
	rows []*Identity
	ids  map[uint32]bool
	sets map[string]bool
}

func newKnown() *known { return &known{ids: map[uint32]bool{}, sets: map[string]bool{}} }

func (k *known) add(r record) error {
	set := labelKey(r.Labels)
	if r.ID < First || len(r.Labels) == 0 || !slices.IsSorted(r.Labels) || k.ids[r.ID] || k.sets[set] {
		return fmt.Errorf("number %d or its labels are not valid here", r.ID)
	}
	k.ids[r.ID], k.sets[set] = true, true
	k.rows = append(k.rows, &Identity{ID: r.ID, Labels: r.Labels})
	return nil
}

func records(rows []*Identity) iter.Seq[record] {
	return func(yield func(record) bool) {
		for _, row := range rows {
			if !yield(record{Head: ledger.Head{ID: row.ID}, Labels: row.Labels}) {
				return
			}
		}
	}
}
