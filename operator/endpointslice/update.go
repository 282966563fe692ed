package endpointslice

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/internal/table"
)

// update is one round of changes: the Services that were touched, as they are
// in one snapshot of the cluster.
type update struct {
	*Controller
	cluster statedb.ReadTxn
	touched map[cluster.Key]bool
	// fresh are the namespaces of Services that have no pods yet.
	fresh map[string]bool
	// moved are the nodes that are in another zone than before.
	moved map[string]bool
}

// service takes a Service that changed. One whose selector did is a new one.
func (u *update) service(row *cluster.Service, deleted bool) {
	k := row.Key()
	old := u.services[k]
	selecting := !deleted && len(row.Selector) > 0 && row.Type != "ExternalName"
	if old != nil && selecting && maps.Equal(old.row.Selector, row.Selector) {
		old.row = row
		u.touched[k] = true
		return
	}
	if old != nil {
		u.selectors.remove(old)
		delete(u.services, k)
		u.touched[k] = true
	}
	if !selecting {
		return
	}
	s := &service{row: row, pods: map[string]*cluster.Pod{}, fresh: true}
	u.services[k] = s
	u.selectors.add(s)
	u.touched[k] = true
	u.fresh[row.Namespace] = true
}

// pod touches the Services that select a pod, and those that did.
func (u *update) pod(pod *cluster.Pod, deleted bool) {
	k := pod.Key()
	if old := u.pods[k]; old != nil {
		u.selectors.selecting(old, func(s *service) {
			delete(s.pods, pod.Name)
			u.touched[s.row.Key()] = true
		})
		delete(u.pods, k)
	}
	if deleted {
		return
	}
	u.pods[k] = pod
	u.selectors.selecting(pod, func(s *service) {
		s.pods[pod.Name] = pod
		u.touched[s.row.Key()] = true
	})
}

// populate gives new Services the pods that were there before them: one pass
// over the pods of a namespace, however many Services came.
func (u *update) populate() {
	for namespace := range u.fresh {
		for pod := range cluster.PodsByNamespace(u.Tables.Pods, u.cluster, namespace) {
			u.selectors.selecting(pod, func(s *service) {
				if s.fresh {
					s.pods[pod.Name] = pod
				}
			})
		}
	}
	for k := range u.touched {
		if s := u.services[k]; s != nil {
			s.fresh = false
		}
	}
}

// node takes a node that comes, goes or changes its zone.
func (u *update) node(n *cluster.Node, deleted bool) {
	zone := n.Labels[zoneLabel]
	was, known := u.zones[n.Name]
	if known && !deleted && was == zone {
		return
	}
	if deleted {
		delete(u.zones, n.Name)
	} else {
		u.zones[n.Name] = zone
	}
	u.moved[n.Name] = true
}

// moves touches the Services of pods that are in another zone now: one pass over the
// pods, however many nodes it is about.
func (u *update) moves() {
	if len(u.moved) == 0 {
		return
	}
	for _, pod := range u.pods {
		if u.moved[pod.NodeName] {
			u.selectors.selecting(pod, func(s *service) { u.touched[s.row.Key()] = true })
		}
	}
}

// zoneLabel of nodes is Kubernetes'.
const zoneLabel = "topology.kubernetes.io/zone"

// slice touches the Services that another controller's slice is and was of.
func (u *update) slice(row *cluster.EndpointSlice, deleted bool) {
	if made(row) {
		return
	}
	k := row.Key()
	if was, ok := u.foreign[k]; ok {
		u.touched[cluster.Key{Namespace: k.Namespace, Name: was}] = true
	}
	if deleted {
		delete(u.foreign, k)
		return
	}
	u.foreign[k] = row.Service
	u.touched[row.ServiceKey()] = true
}

// commit makes the slices of all that was touched, and writes those that differ.
func (u *update) commit(ready bool) error {
	first := ready && u.done != nil
	if len(u.touched) == 0 && !first {
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(u.touched), func(a, b cluster.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var errs []error
	txn := u.DB.WriteTxn(u.Tables.Slices)
	for _, k := range keys {
		if err := u.write(txn, k); err != nil {
			errs = append(errs, fmt.Errorf("make EndpointSlices of Service %s: %w", k, err))
		}
	}
	if first {
		u.done(txn)
		u.Controller.done = nil
	}
	txn.Commit()
	return errors.Join(errs...)
}

// write makes the slices of a Service what they should be: none where another controller
// else has written some.
func (u *update) write(txn statedb.WriteTxn, k cluster.Key) error {
	own, desired, theirs := map[*cluster.EndpointSlice]statedb.Revision{}, []*cluster.EndpointSlice(nil), false
	for row, revision := range u.Tables.Slices.List(txn, cluster.SlicesByService(k)) {
		if made(row) {
			own[row] = revision
		} else {
			theirs = true
		}
	}
	if s := u.services[k]; s != nil && !theirs {
		desired = build(s.row, s.pods, u.zones)
	}
	_, err := table.Replace(txn, u.Tables.Slices, maps.All(own), desired, (*cluster.EndpointSlice).Equal)
	return err
}
