package service

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"myelin/cluster"
)

// Tables are the desired state of the node.
type Tables struct {
	Services  statedb.RWTable[*Service]
	Frontends statedb.RWTable[*Frontend]
	Backends  statedb.RWTable[*Backend]
	Checks    statedb.RWTable[*Check]
}

// NewTables creates the tables "services", "frontends", "backends" and
// "health-checks".
func NewTables(db *statedb.DB) (Tables, error) {
	var (
		t   Tables
		err error
	)
	if t.Services, err = statedb.NewTable(db, "services", serviceKeys(), serviceIDs()); err != nil {
		return Tables{}, fmt.Errorf("create table services: %w", err)
	}
	if t.Frontends, err = statedb.NewTable(db, "frontends", frontendAddresses(), frontendServices()); err != nil {
		return Tables{}, fmt.Errorf("create table frontends: %w", err)
	}
	if t.Backends, err = statedb.NewTable(db, "backends", backendAddresses(), backendIDs()); err != nil {
		return Tables{}, fmt.Errorf("create table backends: %w", err)
	}
	if t.Checks, err = statedb.NewTable(db, "health-checks", checkServices()); err != nil {
		return Tables{}, fmt.Errorf("create table health-checks: %w", err)
	}
	return t, nil
}

// all lists the tables, for a write transaction.
func (t Tables) all() []statedb.TableMeta {
	return []statedb.TableMeta{t.Services, t.Frontends, t.Backends, t.Checks}
}

// ByKey finds a Service by namespace and name.
func ByKey(k cluster.Key) statedb.Query[*Service] { return serviceKeys().Query(k) }

// byID finds a Service by number.
func byID(id uint32) statedb.Query[*Service] { return serviceIDs().Query(id) }

// FrontendByAddress finds a frontend.
func FrontendByAddress(a L4Addr) statedb.Query[*Frontend] { return frontendAddresses().Query(a) }

// FrontendsByService finds the frontends of a Service.
func FrontendsByService(k cluster.Key) statedb.Query[*Frontend] { return frontendServices().Query(k) }

// BackendByAddress finds a backend.
func BackendByAddress(a L4Addr) statedb.Query[*Backend] { return backendAddresses().Query(a) }

// BackendByID finds a backend by number.
func BackendByID(id uint32) statedb.Query[*Backend] { return backendIDs().Query(id) }

// CheckByService finds the health check node port of a Service.
func CheckByService(k cluster.Key) statedb.Query[*Check] { return checkServices().Query(k) }

// Names returns the names of Services by number; empty for numbers that no Service has.
func Names(txn statedb.ReadTxn, t Tables) func(id uint32) string {
	return func(id uint32) string {
		if s, _, ok := t.Services.Get(txn, byID(id)); ok {
			return s.Key().String()
		}
		return ""
	}
}

func compareKeys(a, b cluster.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func serviceKeys() statedb.Index[*Service, cluster.Key] {
	return statedb.Index[*Service, cluster.Key]{
		Name:       "key",
		FromObject: func(s *Service) index.KeySet { return index.NewKeySet(index.Stringer(s.Key())) },
		FromKey:    index.Stringer[cluster.Key],
		FromString: index.FromString,
		Unique:     true,
	}
}

func serviceIDs() statedb.Index[*Service, uint32] {
	return statedb.Index[*Service, uint32]{
		Name:       "id",
		FromObject: func(s *Service) index.KeySet { return index.NewKeySet(index.Uint32(s.ID)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
		Unique:     true,
	}
}

func frontendAddresses() statedb.Index[*Frontend, L4Addr] {
	return statedb.Index[*Frontend, L4Addr]{
		Name:       "address",
		FromObject: func(f *Frontend) index.KeySet { return index.NewKeySet(f.L4().Key()) },
		FromKey:    func(a L4Addr) index.Key { return a.Key() },
		Unique:     true,
	}
}

func frontendServices() statedb.Index[*Frontend, cluster.Key] {
	return statedb.Index[*Frontend, cluster.Key]{
		Name:       "service",
		FromObject: func(f *Frontend) index.KeySet { return index.NewKeySet(index.Stringer(f.Service)) },
		FromKey:    index.Stringer[cluster.Key],
		FromString: index.FromString,
	}
}

func backendAddresses() statedb.Index[*Backend, L4Addr] {
	return statedb.Index[*Backend, L4Addr]{
		Name:       "address",
		FromObject: func(b *Backend) index.KeySet { return index.NewKeySet(b.L4().Key()) },
		FromKey:    func(a L4Addr) index.Key { return a.Key() },
		Unique:     true,
	}
}

func backendIDs() statedb.Index[*Backend, uint32] {
	return statedb.Index[*Backend, uint32]{
		Name:       "id",
		FromObject: func(b *Backend) index.KeySet { return index.NewKeySet(index.Uint32(b.ID)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
		Unique:     true,
	}
}

func checkServices() statedb.Index[*Check, cluster.Key] {
	return statedb.Index[*Check, cluster.Key]{
		Name:       "service",
		FromObject: func(c *Check) index.KeySet { return index.NewKeySet(index.Stringer(c.Service)) },
		FromKey:    index.Stringer[cluster.Key],
		FromString: index.FromString,
		Unique:     true,
	}
}
