package serviceapi

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/internal/table"
)

// apply makes the rows of a Service equal to it.
func (m *Manager) apply(txn statedb.WriteTxn, s *Service) error {
	old, _, known := m.Services.Get(txn, byName(s.Name))
	if !known {
		old = &Service{Name: s.Name}
	}
	_, _, err1 := m.Services.Insert(txn, s)
	var err2 error
	row := serviceRow(s)
	if have, _, ok := m.params.Tables.Services.Get(txn, cluster.ServiceByKey(s.key())); !ok || !have.Equal(row) {
		_, _, err2 = m.params.Tables.Services.Insert(txn, row)
	}
	if err := errors.Join(err1, err2, m.writeProbes(txn, old, s), m.writeSlices(txn, s)); err != nil {
		return fmt.Errorf("write rows of Service %s: %w", s.Name, err)
	}
	return nil
}

// deleteRows deletes the rows of a Service.
func (m *Manager) deleteRows(txn statedb.WriteTxn, s *Service) error {
	_, _, err1 := m.Services.Delete(txn, s)
	_, _, err2 := m.params.Tables.Services.Delete(txn, serviceRow(s))
	slices := m.params.Tables.Slices
	current := slices.List(txn, cluster.SlicesByService(s.key()))
	_, err3 := table.Replace(txn, slices, current, nil, (*cluster.EndpointSlice).Equal)
	if err := errors.Join(err1, err2, err3, m.writeProbes(txn, s, &Service{Name: s.Name})); err != nil {
		return fmt.Errorf("delete rows of Service %s: %w", s.Name, err)
	}
	return nil
}

// writeSlices makes the EndpointSlices of a Service equal to it and to the results of its checks.
func (m *Manager) writeSlices(txn statedb.WriteTxn, s *Service) error {
	rows := sliceRows(s, func(a netip.AddrPort) bool {
		return s.Check != nil && m.failing[s.probe(Backend{Address: a})]
	})
	slices := m.params.Tables.Slices
	current := slices.List(txn, cluster.SlicesByService(s.key()))
	_, err := table.Replace(txn, slices, current, rows, (*cluster.EndpointSlice).Equal)
	return err
}

// writeProbes makes rows for the backends of next. Those that old had too keep their results.
func (m *Manager) writeProbes(txn statedb.WriteTxn, old, next *Service) error {
	var errs []error
	want := map[probeKey]bool{}
	if next.Check != nil {
		for _, b := range next.Backends {
			key := next.probe(b)
			want[key] = true
			row := &Probe{Service: key.service, Backend: key.backend, Health: Unknown, Since: m.params.Now().UTC()}
			have, _, ok := m.Probes.Get(txn, probeKeys().Query(key))
			if ok {
				same := *have
				row = &same
			} else {
				m.unknown[key] = true
			}
			if row.Check = next.Check.String(); !ok || row.Check != have.Check {
				_, _, err := m.Probes.Insert(txn, row)
				errs = append(errs, err)
			}
		}
	}
	for _, b := range old.Backends {
		if key := old.probe(b); !want[key] {
			if row, _, ok := m.Probes.Get(txn, probeKeys().Query(key)); ok {
				_, _, err := m.Probes.Delete(txn, row)
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
