package policy

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"myelin/cluster"
	"myelin/policy/identity"
)

// Version says which version of an object is in force.
type Version string

// Versions. LastGoodVersion is an earlier one that was good, and Closed the newest of an
// object of which none was: what is not understood of it allows nothing, and
// denies all that it could mean.
const (
	Newest          Version = ""
	LastGoodVersion Version = "last good"
	Closed          Version = "closed"
)

// Object is a policy as it is in force, and what became of its newest version.
type Object struct {
	Ref    Ref               `json:"ref"`
	Labels map[string]string `json:"labels,omitempty"`
	// Source is where the object was read, e.g. "manifests:policies.yaml".
	Source string `json:"source,omitempty"`
	// Specs are those of the version that is in force.
	Specs []Spec `json:"specs"`
	// InForce is that version.
	InForce Version `json:"inForce,omitempty"`
	// Problem is why the newest version was refused; empty if it was not.
	Problem string `json:"problem,omitempty"`
	// Since is when the row became as it is.
	Since time.Time `json:"since"`
}

// Equal reports whether two rows say the same, whenever they began to.
func (o *Object) Equal(p *Object) bool {
	return o.Ref == p.Ref && o.Source == p.Source && o.Problem == p.Problem && o.InForce == p.InForce &&
		maps.Equal(o.Labels, p.Labels) && reflect.DeepEqual(o.Specs, p.Specs)
}

// Unenforced are the parts of the version in force that allow nothing, or deny all
// that they could mean, since they are not understood or cannot be enforced: each
// as "field: reason".
func (o *Object) Unenforced() (out []string) {
	add := func(reasons []string) {
		for _, text := range reasons {
			if !slices.Contains(out, text) {
				out = append(out, text)
			}
		}
	}
	for i := range o.Specs {
		add(o.Specs[i].Unenforced)
		for j := range o.Specs[i].Rules {
			add(o.Specs[i].Rules[j].Unenforced)
		}
	}
	return out
}

// Refused is the row where the newest version is another, which was refused: the
// version that was good before stays in force, and where none was the closed one.
func (o *Object) Refused(newest *Object, problem string, now time.Time) *Object {
	row := *newest
	if o != nil && o.InForce != Closed {
		row = *o
		row.InForce = LastGoodVersion
	}
	row.Problem, row.Since = problem, now
	return &row
}

// Anywhere is the same without the place that it was read from.
func (o *Object) Anywhere() *Object {
	out := *o
	out.Source, out.Specs = "", slices.Clone(o.Specs)
	for i := range out.Specs {
		rules := slices.Clone(out.Specs[i].Rules)
		for j := range rules {
			rules[j].Origin.Source, rules[j].Origin.Line = "", 0
		}
		out.Specs[i].Rules = rules
	}
	return &out
}

// TableHeader names the columns of TableRow.
func (*Object) TableHeader() []string {
	return []string{"Kind", "Policy", "Subjects", "Rules", "State", "Source"}
}

// TableRow is the row as text: of the rules the number, which `-o json` has.
func (o *Object) TableRow() []string {
	var subjects []string
	rules := 0
	for i := range o.Specs {
		rules += len(o.Specs[i].Rules)
		if text := o.Specs[i].subject(); !slices.Contains(subjects, text) {
			subjects = append(subjects, text)
		}
	}
	return []string{o.Ref.Kind, o.Ref.Key.String(), strings.Join(subjects, "; "), strconv.Itoa(rules), o.State(),
		o.Source}
}

// subject is as in "shop/k8s:app=web", "*/all" for pods of all namespaces, "all"
// for everything that is no node, or "nodes any:role=worker".
func (s *Spec) subject() string {
	if s.Nodes {
		return "nodes " + s.Subject.String()
	}
	within := ""
	var rest Selector
	for _, r := range s.Subject {
		switch {
		case r.Source != "k8s" || r.Key != identity.NamespaceKey:
			rest = append(rest, r)
		case r.Op == Exists:
			within = "*/"
		case r.Op == In && len(r.Values) == 1:
			within = r.Values[0] + "/"
		default:
			return s.Subject.String()
		}
	}
	return within + rest.String()
}

// State is what became of the object, as lists show it.
func (o *Object) State() string {
	if o.Problem != "" {
		return state(o.Problem, o.InForce)
	}
	if parts := o.Unenforced(); len(parts) > 0 {
		return "partly enforced: " + strings.Join(parts, "; ")
	}
	return state("", Newest)
}

func state(problem string, inForce Version) string {
	switch {
	case problem == "":
		return "accepted"
	case inForce == LastGoodVersion:
		return "refused, the last good version is in force: " + problem
	case inForce == Closed:
		return "refused, what is not understood allows nothing: " + problem
	}
	return "refused: " + problem
}

func labelText(labels map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ",")
}

// Tables are the policies of the cluster, and the groups that they name.
// Sources write the rows, which must not be changed after they are inserted.
type Tables struct {
	Policies statedb.RWTable[*Object]
	Groups   statedb.RWTable[*Group]
	// Proxy: there is a proxy. Without it, sources close what needs it.
	Proxy bool
}

// InForce is a row as it is in force.
func (t Tables) InForce(o *Object) *Object {
	if o == nil || t.Proxy {
		return o
	}
	return o.WithoutProxy()
}

// NewTables creates the tables "policies" and "cidr-groups" in db. It fails
// where one of them exists already.
func NewTables(db *statedb.DB) (t Tables, err error) {
	if t.Policies, err = statedb.NewTable(db, "policies", objectRefs()); err != nil {
		return Tables{}, fmt.Errorf("create table policies: %w", err)
	}
	if t.Groups, err = statedb.NewTable(db, "cidr-groups", groupNames()); err != nil {
		return Tables{}, fmt.Errorf("create table cidr-groups: %w", err)
	}
	return t, nil
}

// ObjectByRef finds one policy.
func ObjectByRef(r Ref) statedb.Query[*Object] { return objectRefs().Query(r) }

// GroupByName finds one group.
func GroupByName(name string) statedb.Query[*Group] { return groupNames().Query(name) }

func objectRefs() statedb.Index[*Object, Ref] {
	return statedb.Index[*Object, Ref]{
		Name:       "ref",
		FromObject: func(o *Object) index.KeySet { return index.NewKeySet(index.Stringer(o.Ref)) },
		FromKey:    index.Stringer[Ref],
		FromString: index.FromString,
		Unique:     true,
	}
}

func groupNames() statedb.Index[*Group, string] {
	return statedb.Index[*Group, string]{
		Name:       "name",
		FromObject: func(g *Group) index.KeySet { return index.NewKeySet(index.String(g.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

// Follower reads what changes among policies and groups.
type Follower struct {
	policies statedb.ChangeIterator[*Object]
	groups   statedb.ChangeIterator[*Group]
}

// Changes are those since the last ones. More has a channel for each table,
// which closes when there are others.
type Changes struct {
	Policies iter.Seq2[statedb.Change[*Object], statedb.Revision]
	Groups   iter.Seq2[statedb.Change[*Group], statedb.Revision]
	More     [2]<-chan struct{}
}

// Write begins a transaction with all tables that a source of cluster state fills.
func (t Tables) Write(db *statedb.DB, c cluster.Tables) statedb.WriteTxn {
	return db.WriteTxn(c.Nodes, c.Namespaces, c.Pods, c.Services, c.Slices, c.Secrets, t.Policies, t.Groups)
}

// RegisterSource registers a source of cluster state as an initializer of all
// tables that it fills; txn is of Write. What it returns marks them initialized.
func (t Tables) RegisterSource(txn statedb.WriteTxn, c cluster.Tables, name string) []func(statedb.WriteTxn) {
	return []func(statedb.WriteTxn){
		c.Nodes.RegisterInitializer(txn, name), c.Namespaces.RegisterInitializer(txn, name),
		c.Pods.RegisterInitializer(txn, name),
		c.Services.RegisterInitializer(txn, name), c.Slices.RegisterInitializer(txn, name),
		c.Secrets.RegisterInitializer(txn, name),
		t.Policies.RegisterInitializer(txn, name), t.Groups.RegisterInitializer(txn, name),
	}
}

// Follow begins with all that is there.
func (t Tables) Follow(db *statedb.DB) (*Follower, error) {
	txn := db.WriteTxn(t.Policies, t.Groups)
	defer txn.Commit()
	policies, err1 := t.Policies.Changes(txn)
	groups, err2 := t.Groups.Changes(txn)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("follow the policy tables: %w", err)
	}
	return &Follower{policies: policies, groups: groups}, nil
}

// Next reads the changes up to txn.
func (f *Follower) Next(txn statedb.ReadTxn) (c Changes) {
	c.Policies, c.More[0] = f.policies.Next(txn)
	c.Groups, c.More[1] = f.groups.Next(txn)
	return c
}
