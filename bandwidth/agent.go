// Package bandwidth limits what pods send to wires and what they receive, as annotations of their Pods say: rows of
// limits in the datapath, and the qdiscs in which packets wait for their departure times.
package bandwidth

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"

	"myelin/bandwidth/options"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/endpoint"
	"myelin/internal/table"
	"myelin/route"
)

// params are what open needs.
type params struct {
	DB        *statedb.DB
	Log       *slog.Logger
	Group     job.Group // from table.Group
	Options   options.Options
	RunDir    string // for the file of originals
	ProcSys   string // "/proc/sys"
	EDT       bool   // the programs were loaded with departure times
	Datapath  *bpf.Datapath
	Epochs    *bpf.Epochs
	Devices   statedb.Table[*route.Device]
	Endpoints statedb.Table[*endpoint.Endpoint]
	Pods      statedb.Table[*cluster.Pod]
}

// manager owns the tables of this package and makes the kernel equal to them.
type manager struct {
	params
	limits statedb.RWTable[*Limit]
	qdiscs statedb.RWTable[*Qdisc]
	spaces statedb.RWTable[*Space]
	kernel *route.Kernel
	before *originals
	ready  func(statedb.WriteTxn) // called once, when rows are derived from initialized sources

	mu    sync.Mutex
	rates map[bpf.DatapathBandwidthKey]sample
}

// open makes the tables and adds their reconcilers and loops to p.Group. Without limits there are no rows, and what an
// earlier agent left goes.
func open(p params) (*manager, error) {
	m := &manager{params: p, rates: map[bpf.DatapathBandwidthKey]sample{}}
	var err error
	if m.limits, err = statedb.NewTable(p.DB, "bandwidths", limitID()); err != nil {
		return nil, fmt.Errorf("make table of bandwidth limits: %w", err)
	}
	if m.qdiscs, err = statedb.NewTable(p.DB, "qdiscs", qdiscIndex()); err != nil {
		return nil, fmt.Errorf("make table of qdiscs: %w", err)
	}
	if m.spaces, err = statedb.NewTable(p.DB, "congestion-control", spaceID()); err != nil {
		return nil, fmt.Errorf("make table of congestion control: %w", err)
	}
	if m.before, err = openOriginals(filepath.Join(p.RunDir, OriginalsFile)); err != nil {
		return nil, err
	}
	if m.kernel, err = route.OpenKernel(nil); err != nil {
		return nil, err
	}
	if err := m.register(); err != nil {
		m.kernel.Close()
		return nil, err
	}
	return m, nil
}

func (m *manager) register() error {
	txn := m.DB.WriteTxn(m.limits, m.qdiscs, m.spaces)
	limits, qdiscs := m.limits.RegisterInitializer(txn, "derive"), m.qdiscs.RegisterInitializer(txn, "derive")
	spaces := m.spaces.RegisterInitializer(txn, "derive")
	m.ready = func(txn statedb.WriteTxn) { limits(txn); qdiscs(txn); spaces(txn) }
	txn.Commit()
	_, err := table.Register(m.Log, m.DB, m.Group, m.qdiscs, func(q *Qdisc) *reconciler.Status {
		return &q.Status
	}, &qdiscOps{m.kernel})
	if err != nil {
		return err
	}
	_, err = table.Register(m.Log, m.DB, m.Group, m.limits, func(l *Limit) *reconciler.Status {
		return &l.Status
	}, &limitOps{m.Datapath.Bandwidths, m.Epochs.Bump, monotonic})
	if err != nil {
		return err
	}
	_, err = table.Register(m.Log, m.DB, m.Group, m.spaces, func(s *Space) *reconciler.Status {
		return &s.Status
	}, &spaceOps{m.ProcSys, m.before})
	if err != nil {
		return err
	}
	m.Group.Add(job.OneShot("bandwidth", m.run))
	if m.Options.Enabled {
		m.Group.Add(job.OneShot("bandwidth-rates", m.sample))
	}
	return nil
}

// monotonic is the clock of departure times.
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // never fails
	return time.Duration(now.Nano())
}

// close closes the socket; call it after the group has stopped. Qdiscs and limits stay, for the datapath goes on
// without the agent.
func (m *manager) close() { m.kernel.Close() }

// run follows Pods, endpoints and devices.
func (m *manager) run(ctx context.Context, _ cell.Health) error {
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		txn := m.DB.ReadTxn()
		if !w.Initialized(txn, m.Endpoints) || m.Options.Enabled && !w.Initialized(txn, m.Devices, m.Pods) {
			return nil
		}
		want := wanted{complete: true}
		if m.Options.Enabled {
			want = m.derive(txn, w)
		}
		want.spaces = m.wantedSpaces(txn, w, want.segments)
		return m.write(want)
	})
}

// wanted are rows. They are not complete while an endpoint with limits has no row because it is not known yet what
// qdisc a device gets: what an agent before has left of such rows must stay.
type wanted struct {
	limits   []*Limit
	qdiscs   []*Qdisc
	spaces   []*Space
	segments map[uint16]int // of packets of endpoints with a limit, by their ID
	complete bool
}

func (m *manager) write(want wanted) error {
	txn := m.DB.WriteTxn(m.limits, m.qdiscs, m.spaces)
	defer txn.Abort()
	if _, err := table.Replace(txn, m.qdiscs, m.qdiscs.All(txn), want.qdiscs, (*Qdisc).Equal); err != nil {
		return fmt.Errorf("write qdiscs: %w", err)
	}
	if _, err := table.Replace(txn, m.limits, m.limits.All(txn), want.limits, (*Limit).Equal); err != nil {
		return fmt.Errorf("write bandwidth limits: %w", err)
	}
	if _, err := table.Replace(txn, m.spaces, m.spaces.All(txn), want.spaces, (*Space).Equal); err != nil {
		return fmt.Errorf("write congestion control: %w", err)
	}
	if want.complete && m.ready != nil {
		m.ready(txn)
		m.ready = nil
	}
	txn.Commit()
	return nil
}

// derive returns the rows that are wanted. The qdisc of a device comes before limits that rely on it: as long as it is
// not decided whether there is one, a new limit waits.
func (m *manager) derive(txn statedb.ReadTxn, w *table.Watch) (want wanted) {
	devices, devicesChanged := m.Devices.AllWatch(txn)
	endpoints, endpointsChanged := m.Endpoints.AllWatch(txn)
	_, podsChanged := m.Pods.AllWatch(txn)
	_, qdiscsChanged := m.qdiscs.AllWatch(txn)
	w.Add(devicesChanged, endpointsChanged, podsChanged, qdiscsChanged)
	wires := pacing{paced: m.EDT}
	want.complete, want.segments = m.Devices.NumObjects(txn) > 0, map[uint16]int{}
	for d := range devices {
		if d.Kind == route.Wire || d.Kind == route.Encryption {
			want.qdiscs = append(want.qdiscs, &Qdisc{Index: d.Index, Device: d.Name, Wire: true,
				Status: reconciler.StatusPending()})
			wires.add(m.paces(txn, d.Index))
		}
	}
	for e := range endpoints {
		pod, _, ok := m.Pods.Get(txn, cluster.PodByKey(e.Namespace, e.Pod))
		if !ok || e.Deleting() || e.PodUID != "" && pod.UID != "" && e.PodUID != pod.UID {
			continue
		}
		rates := annotationRates(pod)
		want.segments[e.ID] = segmentsOf(rates.egress)
		link := m.paces(txn, e.LinkIndex)
		_, _, had := m.qdiscs.Get(txn, qdiscByIndex(e.LinkIndex))
		// Once made it stays as long as the pod, for packets may wait in it.
		if rates.ingress != 0 || had {
			want.qdiscs = append(want.qdiscs, &Qdisc{Index: e.LinkIndex, Device: e.LinkName,
				Status: reconciler.StatusPending()})
		}
		l, known := m.limit(txn, e, rates, wires, link)
		if l != nil {
			want.limits = append(want.limits, l)
		}
		want.complete = want.complete && known
	}
	slices.SortFunc(want.qdiscs, func(a, b *Qdisc) int { return cmp.Compare(a.Index, b.Index) })
	return want
}

// limit returns the row of an endpoint, nil if it has no limits, or if it has no row yet and it is not known what to
// write.
func (m *manager) limit(txn statedb.ReadTxn, e *endpoint.Endpoint, r rates, wires, link pacing) (l *Limit, known bool) {
	if r.egress == 0 && r.ingress == 0 && r.priority == "" && len(r.problems) == 0 {
		return nil, true
	}
	l = &Limit{ID: e.ID, Pod: e.PodName(), Link: e.LinkName, Priority: r.priority, Problems: r.problems,
		Status: reconciler.StatusPending()}
	old, _, ok := m.limits.Get(txn, limitByID(e.ID))
	switch {
	case !ok && (r.egress != 0 && wires.pending || r.ingress != 0 && link.pending):
		return nil, false
	case !ok:
		old = &Limit{}
	}
	l.Egress, l.EgressPaced = wires.apply(r.egress, old.Egress, old.EgressPaced)
	l.Ingress, l.IngressPaced = link.apply(r.ingress, old.Ingress, old.IngressPaced)
	return l, true
}

// pacing is whether devices have a qdisc that heeds departure times.
type pacing struct{ paced, pending bool }

func (p *pacing) add(o pacing) { p.paced, p.pending = p.paced && o.paced, p.pending || o.pending }

// apply returns the limit to write. While it is not known what the devices have, an old one stays as it is.
func (p pacing) apply(rate, old uint64, oldPaced bool) (limit uint64, paced bool) {
	switch {
	case rate == 0:
		return 0, false
	case p.pending && old == 0:
		return 0, false
	case p.pending:
		return rate, oldPaced
	}
	return rate, p.paced
}

// paces reports what is known of a device's qdisc.
func (m *manager) paces(txn statedb.ReadTxn, device int) pacing {
	q, _, ok := m.qdiscs.Get(txn, qdiscByIndex(device))
	switch {
	case !ok || q.Status.Kind == reconciler.StatusKindPending:
		return pacing{pending: true}
	case q.Status.Kind == reconciler.StatusKindError:
		return pacing{}
	}
	return pacing{paced: true}
}

// usesBBR reports whether the node's sockets are to use BBR.
func (m *manager) usesBBR() bool { return m.Options.Enabled && m.Options.BBR && m.EDT }

// wantedSpaces are the node's network namespace and those of pods, if they are to use BBR or have packets of fewer
// segments, or have been changed before.
func (m *manager) wantedSpaces(txn statedb.ReadTxn, w *table.Watch, segments map[uint16]int) (list []*Space) {
	endpoints, changed := m.Endpoints.AllWatch(txn)
	w.Add(changed)
	on := m.usesBBR()
	add := func(s Space) {
		if on || s.Segments > 0 || m.before.has(s.key()) {
			s.Status = reconciler.StatusPending()
			list = append(list, &s)
		}
	}
	add(Space{ID: hostSpace, Name: "node", BBR: on})
	for e := range endpoints {
		if e.NetnsCookie != 0 && !e.Deleting() {
			add(Space{ID: e.ID, Name: e.PodName(), Path: e.NetNS, Cookie: e.NetnsCookie, Link: e.LinkIndex,
				BBR: on && !m.Options.BBRHostOnly, Segments: segments[e.ID]})
		}
	}
	return list
}
