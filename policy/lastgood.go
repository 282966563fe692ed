package policy

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cilium/statedb"

	"myelin/internal/durable"
)

const (
	// savePause is the least time between two writes of the file.
	savePause = time.Second
	// saveShare bounds the time that goes into writing: 1 in so many parts.
	saveShare = 50
	// maxSaved bounds the file, in bytes. Objects beyond it are closed after a
	// restart, should their newest version be refused then.
	maxSaved = 64 << 20
)

// LastGood keeps the versions of policies and groups that are in force in a file,
// so that they outlive the agent: a source looks up objects there whose newest
// version is refused and whose previous version it has not read.
type LastGood struct {
	path   string
	log    *slog.Logger
	tables Tables
	db     *statedb.DB

	mu       sync.Mutex
	policies map[Ref]*Object
	groups   map[string]*Group
}

// OpenLastGood reads the file at path, which need not exist. One that can't be
// read is logged, and taken for an empty one: what is refused is closed then.
func OpenLastGood(path string, db *statedb.DB, tables Tables, log *slog.Logger) *LastGood {
	l := &LastGood{path: path, db: db, tables: tables, log: log, policies: map[Ref]*Object{},
		groups: map[string]*Group{}}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l
	}
	var f *savedFile
	if err == nil {
		f, err = readSaved(data)
	}
	if err != nil {
		log.Warn("the last good versions of policies can't be read: those that are refused now are closed",
			"file", path,
			"error", err)
		return l
	}
	for i := range f.Policies {
		o := f.Policies[i].load()
		l.policies[o.Ref] = o
	}
	for _, g := range f.Groups {
		l.groups[g.Name] = g
	}
	return l
}

// Policy is the version of a policy that was in force when the agent ended; nil if
// none was.
func (l *LastGood) Policy(ref Ref) *Object {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.policies[ref]
}

// Group is the same of a CiliumCIDRGroup.
func (l *LastGood) Group(name string) *Group {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.groups[name]
}

// All calls yield with all that was in force when the agent ended.
func (l *LastGood) All(policies func(*Object), groups func(*Group)) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.policies {
		policies(o)
	}
	for _, g := range l.groups {
		groups(g)
	}
}

// Run writes the file when what is in force changes, until ctx ends, and then once
// more. It begins when the sources have told all. It must be called once.
func (l *LastGood) Run(ctx context.Context) error {
	for _, table := range []statedb.TableMeta{l.tables.Policies, l.tables.Groups} {
		for {
			ok, wait := table.Initialized(l.db.ReadTxn())
			if ok {
				break
			}
			select {
			case <-wait:
			case <-ctx.Done():
				return nil
			}
		}
	}
	l.mu.Lock()
	l.policies, l.groups = map[Ref]*Object{}, map[string]*Group{} // from now on sources have them
	l.mu.Unlock()
	failing := false
	for {
		txn := l.db.ReadTxn()
		_, policies := l.tables.Policies.AllWatch(txn)
		_, groups := l.tables.Groups.AllWatch(txn)
		begin := time.Now()
		err := l.write(txn)
		if err != nil && !failing {
			l.log.Warn("the last good versions of policies are not kept", "error", err)
		}
		failing = err != nil
		if ctx.Err() != nil {
			return nil
		}
		pause := max(savePause, time.Since(begin)*saveShare)
		select {
		case <-ctx.Done():
			continue
		case <-policies:
		case <-groups:
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// write writes what is in force. Objects that are refused come first.
func (l *LastGood) write(txn statedb.ReadTxn) error {
	f := struct {
		Format   int               `json:"format"`
		Policies []json.RawMessage `json:"policies"`
		Groups   []json.RawMessage `json:"groups"`
	}{Format: savedFormat}
	size := 0
	add := func(to *[]json.RawMessage, v any) {
		data, err := json.Marshal(v)
		if err == nil && size+len(data) <= maxSaved {
			*to, size = append(*to, data), size+len(data)
		}
	}
	for _, first := range []bool{true, false} {
		for o := range l.tables.Policies.All(txn) {
			if o.InForce == Closed || (o.InForce == LastGoodVersion) != first {
				continue
			}
			add(&f.Policies, saveObject(o))
		}
		for g := range l.tables.Groups.All(txn) {
			if g.InForce != Closed && (g.InForce == LastGoodVersion) == first {
				add(&f.Groups, g)
			}
		}
	}
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return durable.Write(l.path, data)
}
