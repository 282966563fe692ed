package gateway

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/cluster"
	"myelin/cluster/clustertest"
	"myelin/config"
	"myelin/flow"
	"myelin/service"
	"myelin/service/servicetest"
)

// rig is a load balancer with the Service web: addresses @ext1:80, and @lb1:80 for clients in source ranges, and as
// backends the pods 1 to 4, port 8080.
type rig struct {
	*Gateway
	t       testing.TB
	v6      bool
	cluster *servicetest.Cluster
	session counts
}

// newRig makes a load balancer with DSR whose table has so many entries. more is further configuration.
func newRig(t testing.TB, v6 bool, entries uint32, more string) *rig {
	t.Helper()
	d := bpftest.LoadMaps(t, bpf.Settings{}, map[string]uint32{"nat_entries": entries, "nat_replies": entries})
	const common = "loadBalancer: {standalone: true, dsrDispatch: ipip}\nmyelin.nodeName: n1\n"
	c, err := config.Parse([]byte(common+more), "f")
	if err != nil {
		t.Fatal(err)
	}
	drain, err := LoadDrain(filepath.Join(t.TempDir(), "drain.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, v6: v6, cluster: servicetest.New(t, service.Config{}, "")}
	r.Gateway, err = New(Params{
		Log: slog.New(slog.DiscardHandler), DB: r.cluster.DB, Services: r.cluster.Desired,
		Nodes: r.cluster.Tables.Nodes, Datapath: d, Config: c, Drain: drain,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.serve(4)
	return r
}

// serve gives the Service so many backends.
func (r *rig) serve(backends int) {
	r.t.Helper()
	o := clustertest.Parse(r.t, servicetest.SizedAs(r.v6, backends, 0, "1", "Cluster", "", r.named("@node9")+"/32"))
	o.Nodes = []*cluster.Node{{Name: "n1", Addresses: []netip.Addr{r.addr("@node1"), r.addr("@pod4")}}}
	r.cluster.Set(r.t, o)
	allowed := bpf.Prefix(netip.PrefixFrom(r.addr("@node9"), r.addr("@node9").BitLen()))
	key := bpf.DatapathSourceRangeKey{Length: 32 + allowed.Length, Service: 1, Addr: allowed.Addr}
	if err := r.Datapath.SourceRanges.Put(key, uint32(1)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) named(text string) string { return clustertest.Named(text, r.v6, false) }

func (r *rig) addr(text string) netip.Addr { return netip.MustParseAddr(r.named(text)) }

// flow is a flow with DSR of a client that may use both addresses, to pod 1.
func (r *rig) flow(port int) *apiv1.PeerFlow {
	return &apiv1.PeerFlow{
		ClientAddress: r.addr("@node9").AsSlice(), ClientPort: uint32(port),
		FrontendAddress: r.addr("@ext1").AsSlice(), FrontendPort: 80, Protocol: 6,
		BackendAddress: r.addr("@pod1").AsSlice(), BackendPort: 8080,
		State: established, IdleMs: 1000, AgeSeconds: 60,
	}
}

// snat makes the backend see this node's address.
func (r *rig) snat(m *apiv1.PeerFlow, port uint32) {
	m.SnatAddress, m.SnatPort = r.addr("@node1").AsSlice(), port
}

func (r *rig) clock() flow.Clock {
	r.t.Helper()
	clock, err := flow.ReadClock(r.hz)
	if err != nil {
		r.t.Fatal(err)
	}
	return clock
}

// forward writes the entry that the datapath makes for a flow whose packets arrive here.
func (r *rig) forward(m *apiv1.PeerFlow, packets uint64) bpf.DatapathNatTuple {
	r.t.Helper()
	f, ok := parse(m)
	if !ok {
		r.t.Fatalf("%v", m)
	}
	key, e := f.key(), f.entry(r.clock(), member{service: 1, backend: 1})
	e.Packets[0] = packets
	if err := r.Datapath.NatEntries.Put(key, e); err != nil {
		r.t.Fatal(err)
	}
	return key
}

// install has a peer send a flow, and returns what becomes of it.
func (r *rig) install(m *apiv1.PeerFlow) string {
	r.t.Helper()
	r.session.reset()
	if err := r.installer.install([]*apiv1.PeerFlow{m}, &r.session); err != nil {
		r.t.Error(err)
	}
	var names []string
	for _, c := range r.session.messages() {
		names = append(names, ResultName(c.GetResult()))
	}
	return strings.Join(names, " ")
}

// entries are those in the datapath, by client port: "10.0.1.1:8080 closing learned".
func (r *rig) entries() map[uint16]string {
	r.t.Helper()
	all := map[uint16]string{}
	err := bpf.Each(r.Datapath.NatEntries, func(k *bpf.DatapathNatTuple, e *bpf.DatapathNatEntry) bool {
		text := netip.AddrPortFrom(e.Backend.Netip(), bpf.Port(e.BackendPort)).String()
		if stateOf(k, e) == closing {
			text += " closing"
		}
		if learned(e) {
			text += " learned"
		}
		all[bpf.Port(k.Sport)] = text
		return true
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func (r *rig) replies() (n int) {
	r.t.Helper()
	err := bpf.Each(r.Datapath.NatReplies, func(*bpf.DatapathNatTuple, *bpf.DatapathNatReply) bool { n++; return true })
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// eventually waits until a text is as wanted.
func eventually(t testing.TB, what, want string, got func() string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text := got()
		if text == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: got\n%s\nwant\n%s", what, text, want)
		}
	}
}
