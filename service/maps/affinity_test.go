package maps

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster/clustertest"
	"myelin/service"
)

// affinities are "service/backend" of each row, sorted.
func (r *rig) affinities(t testing.TB) string {
	t.Helper()
	var out []string
	each(t, r.datapath.Affinities, func(key *bpf.DatapathAffinityKey, row *bpf.DatapathAffinity) {
		out = append(out, fmt.Sprintf("%d/%d", key.Service, row.Backend))
	})
	slices.Sort(out)
	return strings.Join(out, " ")
}

// sticky are two Services with a pod in common: a as given, and b.
func sticky(v6 bool, affinity, endpoints string) string {
	return clustertest.Named(fmt.Sprintf(`kind: Service
metadata: {name: a}
spec: {clusterIP: @vip1, %s ports: [{port: 80}]}
---
kind: Service
metadata: {name: b}
spec: {clusterIP: @vip2, sessionAffinity: ClientIP, ports: [{port: 80}]}
---
kind: EndpointSlice
metadata: {name: a, labels: {kubernetes.io/service-name: a}}
addressType: @family
ports: [{port: 8080}]
endpoints: [%s]
---
kind: EndpointSlice
metadata: {name: b, labels: {kubernetes.io/service-name: b}}
addressType: @family
ports: [{port: 8080}]
endpoints: [{addresses: [@pod1]}, {addresses: [@pod4]}]
`, affinity, endpoints), v6, true)
}

// Clients stay with backends that take new flows, and with no others, however
// those left: Services 1 (with affinity) and 2 (with affinity) share a backend.
func TestAffinities(t *testing.T) {
	const (
		stay     = "sessionAffinity: ClientIP,"
		three    = "{addresses: [@pod1]}, {addresses: [@pod2]}, {addresses: [@pod3]}"
		draining = "{addresses: [@pod1]}, {addresses: [@pod2], conditions: " +
			"{ready: false, terminating: true, serving: true}}, {addresses: [@pod3]}"
		without1 = "{addresses: [@pod2]}, {addresses: [@pod3]}"
		with5    = three + ", {addresses: [@pod5]}"
	)
	const all = "1/1 1/2 1/3 2/1 2/4"
	for _, tc := range []struct {
		name, affinity, endpoints string
		state                     service.State
		want                      string
	}{
		{"one more", stay, with5, service.Active, all},
		{"terminating", stay, draining, service.Active, "1/1 1/3 2/1 2/4"},
		{"gone from one of two Services", stay, without1, service.Active, "1/2 1/3 2/1 2/4"},
		{"maintenance", stay, three, service.Maintenance, "1/2 1/3 2/4"},
		{"quarantined", stay, three, service.Quarantined, "1/2 1/3 2/4"},
		{"off", "", three, service.Active, "2/1 2/4"},
	} {
		for _, family := range []string{"IPv4", "IPv6"} {
			for _, restarted := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/restarted %v", tc.name, family, restarted), func(t *testing.T) {
					r := newRig(t, service.Config{}, small())
					r.Set(t, clustertest.Parse(t, sticky(family == "IPv6", stay, three)))
					r.stick(t)
					if tc.state != service.Active {
						b, _, _ := r.Desired.Backends.Get(r.DB.ReadTxn(), service.BackendByID(1))
						if err := r.SetState(b.L4(), tc.state); err != nil {
							t.Fatal(err)
						}
					}
					r.Set(t, clustertest.Parse(t, sticky(family == "IPv6", tc.affinity, tc.endpoints)))
					r.unstick(t, all, tc.want, restarted)
				})
			}
		}
	}
}

// stick gives each backend of both Services a client.
func (r *rig) stick(t *testing.T) {
	t.Helper()
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	for i, row := range [][2]uint32{{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 4}} {
		key := bpf.DatapathAffinityKey{Service: row[0], Client: bpf.DatapathAddr{B: [16]byte{byte(i)}}}
		if err := r.datapath.Affinities.Put(key, bpf.DatapathAffinity{Backend: row[1]}); err != nil {
			t.Fatal(err)
		}
	}
}

// unstick writes what changed. Affinities change after that, by the sweeper or
// by the next agent.
func (r *rig) unstick(t *testing.T, before, want string, restarted bool) {
	t.Helper()
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	if got := r.affinities(t); got != before {
		t.Errorf("affinities are looked through in the reconciler's time: %s", got)
	}
	if restarted {
		r.agent(t, r.datapath)
		r.again(t)
	} else if (len(r.affinityWake) > 0) != (want != before) {
		t.Errorf("%d wakes the sweeper", len(r.affinityWake))
	} else if err := r.cleanAffinities(); err != nil {
		t.Fatal(err)
	}
	if got := r.affinities(t); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The sweeper sweeps when it is woken, and ends.
func TestForget(t *testing.T) {
	r := newRig(t, service.Config{}, small())
	if err := r.datapath.Affinities.Put(bpf.DatapathAffinityKey{Service: 1},
		bpf.DatapathAffinity{Backend: 2}); err != nil {
		t.Fatal(err)
	}
	deleted := make(chan string, 1)
	r.before = func(op string) error { deleted <- op; return nil }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.runAffinityCleanup(ctx) }()
	old := bpf.DatapathFrontend{Service: 1, Affinity: 1, Set: [2]bpf.DatapathBackendSet{{Id: 1}}}
	row := old
	row.Set = [2]bpf.DatapathBackendSet{}
	r.mu.Lock()
	r.noteRemovals(&old, &row, changes{{set: 1, last: []uint32{2}}})
	r.mu.Unlock()
	select {
	case op := <-deleted:
		if op != "delete affinities" {
			t.Error(op)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing is deleted")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := r.affinities(t); got != "" {
		t.Errorf("%s is left", got)
	}
}
