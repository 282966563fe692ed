package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"myelin/bench/results"
	"myelin/bpf"
	"myelin/endpoint"
	"myelin/policy"
)

const (
	heldIdentities = 50_000
	heldPrefixes   = 1_000_000
	crowdRate      = 2_000 // pods that come as fast as they can
)

// rate is how many pods of the node's own come in a second where each is waited for.
func (c *crowd) rate(ctx context.Context) (results.Result, error) {
	begin := time.Now()
	_, err := c.timed(ctx, crowdRate, 0, c.addHere)
	return results.Result{Name: "policy/adds_per_s_5000", Value: crowdRate / time.Since(begin).Seconds(),
		Unit: "pods/s"}, err
}

// settledMB is the memory of this process without what is garbage, which the kernel gets back first.
func settledMB(name string) (results.Result, error) {
	debug.FreeOSMemory()
	mb, err := residentMB()
	return results.Result{Name: name, Value: mb, Unit: "MB"}, err
}

// policyMaps are how many bytes the kernel's maps of policies hold.
func policyMaps(d *bpf.Datapath) (bytes uint64, rows map[string]uint64, err error) {
	usages, err := (&bpf.Usages{Datapath: d, Now: time.Now}).Read()
	rows = map[string]uint64{}
	for _, u := range usages {
		if slices.Contains([]string{"policies", "peers", "peer_prefixes", "peer_classes", "verdicts"}, u.Name) {
			rows[u.Name] = uint64(u.Entries)
			bytes += u.Bytes
		}
	}
	return bytes, rows, err
}

// held is what the node whose memory is measured knows, and the number of rules that apply to its one endpoint.
type held struct {
	name  string
	all   func(*policed) error
	rules [2]int
}

// Holding measures what 50,000 identities, and what a list of 1,000,000 addresses and prefixes hold in memory: a
// process that has tables and engine, and the kernel's maps.
func Holding(ctx context.Context, opts Options) (list []results.Result, err error) {
	for _, h := range []held{
		{"50000_identities", manyPods, [2]int{policiesHeld, policiesHeld}},
		{"1000000", func(all *policed) error {
			return errors.Join(all.addPod("a", namespace, "own", map[string]string{"app": "own"}, "10.0.0.1"),
				all.addList(namespace, heldPrefixes, netip.MustParsePrefix("203.0.113.0/24")))
		}, [2]int{1, 2}},
	} {
		found, err := h.measure(ctx, opts)
		if err != nil {
			return list, fmt.Errorf("hold %s: %w", h.name, err)
		}
		list = append(list, found...)
	}
	return list, nil
}

// policiesHeld are for each of the pods, so that there are rows for half of them.
const policiesHeld = 100

// manyPods are so many pods, each with labels of its own, of which two apps may talk.
func manyPods(all *policed) error {
	err := all.addPolicies(namespace, policiesHeld, "own", "app0")
	for i := range heldIdentities {
		a := netip.AddrFrom4([4]byte{10, byte(1 + i>>16), byte(i >> 8), byte(i)})
		labels := map[string]string{"app": fmt.Sprint("app", i%2), "pod-template-hash": fmt.Sprint(i)}
		err = errors.Join(err, all.addPod("elsewhere", namespace, fmt.Sprint("pod", i), labels, a.String()))
	}
	return errors.Join(err, all.addPod("a", namespace, "own", map[string]string{"app": "own"}, "10.0.0.1"))
}

func (h held) measure(ctx context.Context, opts Options) (list []results.Result, err error) {
	dir, err := os.MkdirTemp("", "mybench-holding-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	e, err := h.begin(ctx, filepath.Join(dir, "state"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := h.known(ctx, e); err != nil {
		return nil, err
	}
	resident, err1 := settledMB("policy/rss_mb_" + h.name)
	bytes, rows, err2 := policyMaps(e.datapath)
	opts.Log.Info("held", "what", h.name, "rows", rows)
	return []results.Result{resident, {Name: "policy/maps_mb_" + h.name, Value: float64(bytes) / 1e6, Unit: "MB"}},
		errors.Join(err1, err2)
}

func (h held) begin(ctx context.Context, dir string) (*enforcer, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	all := &policed{}
	err := errors.Join(all.addNode("a", "192.0.2.1", netip.MustParsePrefix("10.0.0.0/24")), all.addNamespace(namespace),
		h.all(all))
	if err != nil {
		return nil, err
	}
	own := &endpoint.Endpoint{ID: podSlot, ContainerID: "own", IfName: "eth0", Namespace: namespace, Pod: "own",
		IPv4: netip.MustParseAddr("10.0.0.1"), State: endpoint.StateReady}
	sizes := bpf.Sizes{Peers: 1 << 20, PeerPrefixes: 1 << 20, PeerClasses: 1 << 18, Verdicts: 1 << 18}
	return newEnforcer(ctx, dir, "a", bpf.Options{Settings: enforcing(), Sizes: sizes}, func(e *enforcer) error {
		txn := e.db.WriteTxn(e.endpoints)
		defer txn.Abort()
		if err := errors.Join(e.put(all), insert(txn, e.endpoints, []*endpoint.Endpoint{own})); err != nil {
			return err
		}
		txn.Commit()
		return nil
	})
}

// known returns when all rules apply to the endpoint: the first round has all that the tables had before it.
func (h held) known(ctx context.Context, e *enforcer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*patience)
	defer cancel()
	if err := e.engine.WaitPod(ctx, podSlot); err != nil {
		return err
	}
	row, _, _ := e.engine.Realised.Get(e.db.ReadTxn(), policy.RealisedBySlot(podSlot))
	if row == nil || row.Error != "" || row.Rules != h.rules {
		return fmt.Errorf("the endpoint has %+v, not %v rules", row, h.rules)
	}
	return nil
}
