package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"myelin/bench/results"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/endpoint"
	"myelin/kube/manifests"
	"myelin/policy"
)

// crowd is a node in a cluster of many policies, which come from manifests: a hundred for each namespace, that all of
// apply to its pods. A pod of each namespace is the node's own.
type crowd struct {
	*enforcer
	dir    string // of manifests
	pods   int    // that there are in the cluster
	events int    // changes so far
	log    *slog.Logger
}

const (
	crowdPolicies   = 10_000
	crowdNamespaces = 100
	crowdPods       = 5_000 // each with labels of its own
	crowdChanges    = 300
	crowdAdds       = 1_000
	crowdPace       = 10 * time.Millisecond // from one pod to the next
)

// Policing measures, with 10,000 policies and 5,000 identities, how long a changed policy takes from the file, and from
// its table, to the kernel, and a new pod of the node from its tables, where 100 come a second; and what all of that
// holds in memory: the kernel's maps, and this process.
func Policing(ctx context.Context, opts Options) (list []results.Result, err error) {
	dir, err := os.MkdirTemp("", "mybench-policing-")
	if err != nil {
		return nil, err
	}
	c := &crowd{dir: filepath.Join(dir, "manifests"), log: opts.Log}
	defer func() {
		if c.enforcer != nil {
			err = errors.Join(err, c.close())
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := c.begin(ctx, dir); err != nil {
		return nil, err
	}
	held, err := settledMB("policy/rss_mb_10000")
	if err != nil {
		return nil, err
	}
	list = append(list, held)
	for _, way := range []struct {
		name   string
		times  int
		pace   time.Duration
		change func(int) (watched, error)
	}{
		{"policy/apply", crowdChanges, 0, c.changeFile},
		{"policy/apply_table", crowdChanges, 0, c.changeRow},
		{"policy/pod_add", crowdAdds, crowdPace, c.addHere},
	} {
		took, err := c.timed(ctx, way.times, way.pace, way.change)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
		list = append(list, percentiles(way.name, took)...)
	}
	memory, err1 := c.memory()
	rate, err2 := c.rate(ctx)
	return append(append(list, memory...), rate), errors.Join(err1, err2)
}

func percentiles(name string, took []time.Duration) []results.Result {
	slices.Sort(took)
	ms := func(part int) float64 { return float64(took[len(took)*part/100].Microseconds()) / 1000 }
	return []results.Result{{Name: name + "_p50_ms", Value: ms(50), Unit: "ms"},
		{Name: name + "_p99_ms", Value: ms(99), Unit: "ms"}}
}

func (c *crowd) begin(ctx context.Context, dir string) (err error) {
	state := filepath.Join(dir, "state")
	if err := errors.Join(os.Mkdir(state, 0o700), c.write()); err != nil {
		return err
	}
	all := &policed{}
	if err := all.addNode("a", "192.0.2.1", netip.MustParsePrefix("10.0.0.0/16")); err != nil {
		return err
	}
	for i := range crowdNamespaces {
		err = errors.Join(err, all.addNamespace(crowdNamespace(i)))
	}
	for range crowdPods {
		err = errors.Join(err, c.addPod(all, "elsewhere"))
	}
	if err != nil {
		return err
	}
	sizes := bpf.Sizes{Peers: 1 << 16, PeerPrefixes: 1 << 16, PeerClasses: 1 << 18, Verdicts: 1 << 18}
	var source *manifests.Source
	c.enforcer, err = newEnforcer(ctx, state, "a", bpf.Options{Settings: enforcing(), Sizes: sizes},
		func(e *enforcer) (err error) {
			c.enforcer = e
			source, err = manifests.New(manifests.Params{DB: e.db, Tables: e.cluster, Policies: e.policies, Dir: c.dir,
				Log: c.log, Now: time.Now})
			return err
		})
	if err != nil {
		return err
	}
	following, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- source.Run(following) }()
	c.ended = append(c.ended, func() error { stop(); return <-ended })
	if err := c.put(all); err != nil {
		return err
	}
	for i := range crowdNamespaces {
		w, err := c.addHere(i)
		if err == nil {
			err = w.wait(ctx, c.enforcer)
		}
		if err != nil {
			return err
		}
	}
	return c.known(ctx)
}

func crowdNamespace(i int) string { return fmt.Sprint("ns", i%crowdNamespaces) }

// write makes a file of each policy.
func (c *crowd) write() error {
	err := os.Mkdir(c.dir, 0o755)
	for i := range crowdPolicies {
		err = errors.Join(err, c.writePolicy(i, 1+i/crowdNamespaces))
	}
	return err
}

const crowdPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p%d, namespace: %s}
spec:
  podSelector: {}
  ingress:
  - from:
    - podSelector: {matchLabels: {app: app%d}}
    ports:
    - {protocol: TCP, port: %d}
`

func (c *crowd) writePolicy(i, port int) error {
	text := fmt.Sprintf(crowdPolicy, i, crowdNamespace(i), i/crowdNamespaces%10, port)
	return os.WriteFile(filepath.Join(c.dir, fmt.Sprintf("p%d.yaml", i)), []byte(text), 0o644)
}

// addPod adds one with labels of its own, in the next namespace.
func (c *crowd) addPod(all *policed, node string) error {
	i := c.pods
	c.pods++
	address := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).Next()
	labels := map[string]string{"app": fmt.Sprint("app", i/crowdNamespaces%10), "pod-template-hash": fmt.Sprint(i)}
	return all.addPod(node, crowdNamespace(i), fmt.Sprint("pod", i), labels, address.String())
}

// watched is an endpoint whose row in the kernel is to change.
type watched struct {
	slot  uint16
	since statedb.Revision
	rules int // that it then has, at least
}

// watch remembers what is in the kernel of an endpoint.
func (c *crowd) watch(slot uint16, rules int) watched {
	_, revision, _ := c.engine.Realised.Get(c.db.ReadTxn(), policy.RealisedBySlot(slot))
	return watched{slot, revision, rules}
}

// wait returns when the endpoint's row is in the kernel.
func (w watched) wait(ctx context.Context, e *enforcer) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		row, revision, changed, ok := e.engine.Realised.GetWatch(e.db.ReadTxn(), policy.RealisedBySlot(w.slot))
		if ok && revision > w.since && row.Rules[policy.Ingress] >= w.rules && row.Known {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the policies of endpoint %d: %w", w.slot, ctx.Err())
		}
	}
}

// timed makes so many changes and waits for each.
func (c *crowd) timed(ctx context.Context, times int, pace time.Duration,
	change func(int) (watched, error)) (took []time.Duration, err error) {
	next := time.Now()
	for i := range times {
		begin := time.Now()
		w, err := change(i)
		if err == nil {
			err = w.wait(ctx, c.enforcer)
		}
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(begin))
		next = next.Add(pace)
		time.Sleep(time.Until(next))
	}
	if late := time.Since(next); pace > 0 && late > time.Second {
		return nil, fmt.Errorf("%d changes, one each %v, were %v late at the end", times, pace, late)
	}
	return took, nil
}

func (c *crowd) slotOf(i int) uint16 { return uint16(endpoint.MinID + i%crowdNamespaces) }

const perNamespace = crowdPolicies / crowdNamespaces

// changeFile gives a policy another port, in its file.
func (c *crowd) changeFile(i int) (watched, error) {
	c.events++
	w := c.watch(c.slotOf(i), perNamespace)
	return w, c.writePolicy(i, 1000+c.events)
}

// changeRow does so in the table.
func (c *crowd) changeRow(i int) (watched, error) {
	c.events++
	w := c.watch(c.slotOf(i), perNamespace)
	ref := policy.Ref{Kind: "NetworkPolicy", Key: cluster.Key{Namespace: crowdNamespace(i), Name: fmt.Sprint("p", i)}}
	old, _, ok := c.policies.Policies.Get(c.db.ReadTxn(), policy.ObjectByRef(ref))
	if !ok {
		return w, fmt.Errorf("there is no %v", ref)
	}
	row := *old
	row.Specs = slices.Clone(row.Specs)
	spec := &row.Specs[0]
	spec.Rules = slices.Clone(spec.Rules)
	port := uint16(1000 + c.events)
	spec.Rules[0].Ports = []policy.Port{{Proto: policy.ProtoTCP, First: port, Last: port}}
	return w, c.put(&policed{policies: []*policy.Object{&row}})
}

// addHere adds a pod of the node's own, and its endpoint.
func (c *crowd) addHere(int) (watched, error) {
	all := &policed{}
	if err := c.addPod(all, "a"); err != nil {
		return watched{}, err
	}
	pod := all.pods[0]
	slot := uint16(endpoint.MinID + c.pods - 1 - crowdPods)
	e := &endpoint.Endpoint{ID: slot, ContainerID: pod.Name, IfName: "eth0", Namespace: pod.Namespace, Pod: pod.Name,
		IPv4: pod.IPv4(), State: endpoint.StateReady}
	w := c.watch(slot, 0)
	txn := c.db.WriteTxn(c.endpoints)
	defer txn.Abort()
	if err := errors.Join(c.put(all), insert(txn, c.endpoints, []*endpoint.Endpoint{e})); err != nil {
		return w, err
	}
	txn.Commit()
	return w, nil
}

// known returns when the first endpoint of each namespace has all of its policies in force.
func (c *crowd) known(ctx context.Context) error {
	for i := range crowdNamespaces {
		w := watched{slot: c.slotOf(i), rules: perNamespace}
		if err := w.wait(ctx, c.enforcer); err != nil {
			return err
		}
	}
	return nil
}

// memory is what the maps of policies hold, and this process.
func (c *crowd) memory() ([]results.Result, error) {
	bytes, rows, err1 := policyMaps(c.datapath)
	c.log.Info("maps", "rows", rows)
	resident, err2 := residentMB()
	return []results.Result{
		{Name: "policy/maps_mb", Value: float64(bytes) / 1e6, Unit: "MB"},
		{Name: "policy/engine_rss_mb", Value: resident, Unit: "MB"},
	}, errors.Join(err1, err2)
}

// residentMB is the memory of this process.
func residentMB() (float64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kB float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kB); n == 1 {
			return kB * 1024 / 1e6, nil
		}
	}
	return 0, errors.New("/proc/self/status: no VmRSS")
}
