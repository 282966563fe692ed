package manifests

import (
	"fmt"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Problem is an object, or a file, that was refused.
type Problem struct {
	// File is the path below the directory, or the directory itself.
	File string `json:"file"`
	// Object is "Kind namespace/name", or the place in the file where that is
	// not known, e.g. "document 2"; empty where the whole file is meant.
	Object string `json:"object,omitempty"`
	// Field is the path in the object, e.g. "spec.podCIDRs[0]".
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"`
	// Since is when the problem was first seen.
	Since time.Time `json:"since"`
}

// Error is "file: object: field: reason".
func (p *Problem) Error() string {
	var parts []string
	for _, s := range []string{p.File, p.Object, p.Field, p.Reason} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// TableHeader names the columns of TableRow.
func (*Problem) TableHeader() []string {
	return []string{"File", "Object", "Field", "Reason", "Since"}
}

// TableRow is the row as text.
func (p *Problem) TableRow() []string {
	return []string{p.File, p.Object, p.Field, p.Reason, p.Since.UTC().Format(time.RFC3339)}
}

func (p *Problem) key() string {
	return strings.Join([]string{p.File, p.Object, p.Field, p.Reason}, "\x00")
}

func problemKeys() statedb.Index[*Problem, string] {
	return statedb.Index[*Problem, string]{
		Name:       "key",
		FromObject: func(p *Problem) index.KeySet { return index.NewKeySet(index.String(p.key())) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

func newProblems(db *statedb.DB) (statedb.RWTable[*Problem], error) {
	t, err := statedb.NewTable(db, "manifest-problems", problemKeys())
	if err != nil {
		return nil, fmt.Errorf("create table manifest-problems: %w", err)
	}
	return t, nil
}
