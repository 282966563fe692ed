package cluster

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Problem is an object, or a file, that a source refused.
type Problem struct {
	// File is what the object was read from: a path below the directory of
	// manifests, or the directory itself; "kubernetes" for an API server.
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

// Problems is the table of what a source refuses.
type Problems struct {
	statedb.RWTable[*Problem]

	db  *statedb.DB
	log *slog.Logger
	now func() time.Time
}

// NewProblems creates the table under a name that no other table of db has. now
// is the clock of Problem.Since.
func NewProblems(db *statedb.DB, name string, log *slog.Logger, now func() time.Time) (*Problems, error) {
	t, err := statedb.NewTable(db, name, statedb.Index[*Problem, string]{
		Name:       "key",
		FromObject: func(p *Problem) index.KeySet { return index.NewKeySet(index.String(p.key())) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	})
	if err != nil {
		return nil, fmt.Errorf("create table %s: %w", name, err)
	}
	return &Problems{RWTable: t, db: db, log: log, now: now}, nil
}

// Replace makes the table equal to problems, and logs what is new and what is
// over. One that goes on keeps the time when it was first seen.
func (p *Problems) Replace(problems []*Problem) {
	gone, fresh := map[string]*Problem{}, map[string]*Problem{}
	for row := range p.All(p.db.ReadTxn()) {
		gone[row.key()] = row
	}
	kept := map[string]bool{}
	for _, row := range problems {
		key := row.key()
		if _, ok := gone[key]; ok || kept[key] {
			delete(gone, key)
			kept[key] = true
			continue
		}
		c := *row
		c.Since = p.now()
		fresh[key] = &c
	}
	if len(gone)+len(fresh) == 0 {
		return
	}
	txn := p.db.WriteTxn(p)
	defer txn.Commit()
	for _, key := range slices.Sorted(maps.Keys(fresh)) {
		p.log.Warn("refused", "problem", fresh[key].Error())
		must(p.Insert(txn, fresh[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		p.log.Info("a problem is over", "problem", gone[key].Error())
		must(p.Delete(txn, gone[key]))
	}
}

// must is for what can't fail: the table is in the transaction.
func must[T any](_ T, _ bool, err error) {
	if err != nil {
		panic(err)
	}
}
