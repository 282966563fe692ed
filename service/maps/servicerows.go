package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/service"
)

// serviceRows are the rows in the kernel of a map whose keys name a Service. Their contents are remembered, because the
// map can only be read as a whole.
type serviceRows[K, V comparable] struct {
	of   *ebpf.Map
	what string // for errors
	rows map[uint32]map[K]V
}

// readServiceRows reads the rows that the previous agent wrote.
func readServiceRows[K, V comparable](m *ebpf.Map, what string, serviceOf func(*K) uint32) (*serviceRows[K, V], error) {
	r := &serviceRows[K, V]{of: m, what: what, rows: map[uint32]map[K]V{}}
	err := bpf.Each(m, func(key *K, value *V) bool {
		r.remember(serviceOf(key), *key, *value)
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return r, nil
}

func (r *serviceRows[K, V]) remember(id uint32, key K, value V) {
	if r.rows[id] == nil {
		r.rows[id] = map[K]V{}
	}
	r.rows[id][key] = value
}

// off reports whether no feature needs the map.
func (r *serviceRows[K, V]) off() bool { return r.of.MaxEntries() <= 1 }

// write makes the rows of a Service equal to want.
func (r *serviceRows[K, V]) write(k *Kernel, id uint32, want map[K]V) error {
	for key, value := range want {
		if had, ok := r.rows[id][key]; ok && had == value {
			continue
		}
		if err := putRow(k, r.of, key, value); err != nil {
			return fmt.Errorf("write %s of service %d: %w", r.what, id, err)
		}
		r.remember(id, key, value)
	}
	return r.delete(k, id, want)
}

// delete deletes the rows of a Service that are not in keep.
func (r *serviceRows[K, V]) delete(k *Kernel, id uint32, keep map[K]V) error {
	for key := range r.rows[id] {
		if _, ok := keep[key]; ok {
			continue
		}
		if err := deleteRow(k, r.of, key); err != nil {
			return fmt.Errorf("delete %s of service %d: %w", r.what, id, err)
		}
		delete(r.rows[id], key)
	}
	if len(r.rows[id]) == 0 {
		delete(r.rows, id)
	}
	return nil
}

// prune deletes the rows of Services without a frontend.
func (r *serviceRows[K, V]) prune(k *Kernel, services map[uint32]bool) error {
	var errs []error
	for id := range r.rows {
		if !services[id] {
			errs = append(errs, r.delete(k, id, nil))
		}
	}
	return errors.Join(errs...)
}

// frontendService is the Service that a frontend belonged to when its Service's rows were last written.
type frontendService struct {
	name cluster.Key
	id   uint32
}

// updateServiceRows writes the members and servers of a frontend's Service, and of the Service that the frontend
// belonged to before.
func (k *Kernel) updateServiceRows(txn statedb.ReadTxn, f *service.Frontend) error {
	key, now := frontendKey(f.L4()), frontendService{f.Service, f.ServiceID}
	last, had := k.serviceOf[key]
	k.serviceOf[key] = now
	err := k.writeServiceRows(txn, now)
	if had && last != now {
		err = errors.Join(err, k.writeServiceRows(txn, last))
	}
	return err
}

// writeServiceRows makes the members and servers of a Service in the kernel equal to those in the tables.
func (k *Kernel) writeServiceRows(txn statedb.ReadTxn, s frontendService) error {
	err := k.writeMembers(txn, s.name, s.id)
	if !k.servers.off() {
		err = errors.Join(err, k.servers.write(k, s.id, k.serversOf(txn, s)))
	}
	return err
}

// pruneServiceRows deletes the members and servers of Services without a frontend.
func (k *Kernel) pruneServiceRows(services map[uint32]bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.pruneMembers(services), k.servers.prune(k, services))
}

// readAllServiceRows reads the members and servers that the previous agent wrote.
func (k *Kernel) readAllServiceRows() (err error) {
	if err = k.readMembers(); err != nil {
		return err
	}
	k.servers, err = readServiceRows[bpf.DatapathQuicServerKey, uint32](k.datapath.QuicServers, "server IDs",
		func(key *bpf.DatapathQuicServerKey) uint32 { return key.Service })
	return err
}

// serversOf are the backends of a Service by server ID, from the tables. All frontends of a port and family have the
// same ones.
func (k *Kernel) serversOf(txn statedb.ReadTxn, of frontendService) map[bpf.DatapathQuicServerKey]uint32 {
	out := map[bpf.DatapathQuicServerKey]uint32{}
	seen := map[bpf.DatapathQuicServerKey]bool{}
	for f := range k.tables.Frontends.List(txn, service.FrontendsByService(of.name)) {
		key := bpf.DatapathQuicServerKey{Service: f.ServiceID, Port: portNumber(f), Family: 4}
		if f.Address.Addr().Is6() {
			key.Family = 6
		}
		if seen[key] || f.ServiceID != of.id {
			continue
		}
		seen[key] = true
		for _, s := range f.Servers {
			key.Id = s.ID
			out[key] = s.Backend
		}
	}
	return out
}
