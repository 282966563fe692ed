// Package observer is the feature that records the events of the datapath, serves
// them as flows, and passes all of them to metrics and exporters.
package observer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/api"
	"myelin/drop"
	"myelin/endpoint"
	"myelin/event"
	"myelin/hubble"
	"myelin/hubble/options"
	"myelin/internal/ticker"
	"myelin/internal/tlsfile"
	"myelin/l7/control"
	"myelin/node"
	"myelin/policy"
	"myelin/policy/identity"
	"myelin/service"
)

// Params are what Feature needs beyond the node.
type Params struct {
	Version string    // of the build
	Began   time.Time // when the agent was started
	// State is called when the feature starts.
	State func() State
	// Serve serves HTTP on addresses of the node, of which "" is all, until the agent stops.
	Serve func(name string, addresses []string, port uint16, handler http.Handler)
}

// State is what other features have created before this one starts.
type State struct {
	Hub   *event.Hub
	Names Names
	// DNS returns the names by which the pod of a slot knows an address.
	DNS func(slot uint16, addr netip.Addr) []string

	Endpoints  statedb.Table[*endpoint.Endpoint]
	Addresses  statedb.Table[*node.Address] // of this node
	Identities *identity.Identities
	Policies   statedb.Table[*policy.Object]
	Rules      statedb.Table[*policy.RuleRow]   // nil if policies are not enforced
	Realised   statedb.Table[*policy.Realised]  // nil if policies are not enforced
	Frontends  statedb.Table[*service.Frontend] // nil if Services are off
}

// Observer is the feature.
type Observer struct {
	*feature.Node
	Params
	state State // from start on

	recorder *hubble.Recorder // nil: off
	observer *hubble.Observer
	server   *hubble.Server
	sub      *event.Subscription
	problem  error // why nothing is recorded
	lost     uint64
}

// New returns the feature, which is on if hubble.enabled is true.
func New(n *feature.Node, p Params) *Observer { return &Observer{Node: n, Params: p} }

// Feature returns the parts that record and serve flows.
func (h *Observer) Feature() *feature.Feature {
	return &feature.Feature{
		Name: "Hubble", Start: h.start, Stop: h.stop, Metrics: h.metrics,
		Status: func() []feature.Status { return []feature.Status{h.status()} },
	}
}

// start records events from now on. Where that fails pods have their network all the same, and the status says why.
func (h *Observer) start(context.Context) error {
	c := h.Config
	if !c.Hubble.Enabled {
		return nil
	}
	h.state = h.State()
	ring, err := hubble.NewRing(c.Hubble.Capacity())
	if err != nil {
		return err
	}
	uptime, err := event.Monotonic()
	if err != nil {
		return err
	}
	id, err := bootID(c.Myelin.NodeName)
	if err != nil {
		return err
	}
	node := hubble.Node{
		Name: hubble.NodeName(c.ClusterName, c.Myelin.NodeName), Version: h.Version, Labels: h.nodeLabels(),
	}
	h.observer = &hubble.Observer{
		Ring: ring, Source: h.state.Hub,
		Converter: hubble.NewConverter(h.flowNames(), node, time.Now().Add(-uptime), id),
		Agent:     hubble.NewAgentEvents(), Sizing: sizing(&c.Hubble), Interval: c.Events.Interval, Now: time.Now,
		Self: h.self,
	}
	h.observer.Connections = h.connections(ring)
	h.observer.Converter.L7Records = ring.L7
	if redact := c.Hubble.Redact; redact.Enabled {
		h.observer.Converter.Redact = hubble.Redaction{URLQuery: redact.URLQuery, UserInfo: redact.UserInfo}
	}
	h.recorder = &hubble.Recorder{Ring: ring, NoVerdicts: !c.Events.PolicyVerdict}
	sink := event.Sink{Record: h.recorder.Record, DNS: h.recorder.DNS, Overwritten: h.recorder.Overwritten}
	if h.sub, h.problem = h.state.Hub.Sink(sink); h.problem != nil {
		h.Log.Error("no flows are recorded", "error", h.problem)
	}
	h.observer.Begin() // not before events are recorded: a relay reports what was earlier as lost
	_, h.lost = h.state.Hub.Lost()
	h.Go("hubble", h.tick)
	h.Go("hubble-agent-events", h.agentEvents)
	if h.observer.Connections != nil {
		h.Go("hubble-connections", h.reportConnections)
	}
	h.serve()
	return nil
}

// sizing is that of a ring without a fixed capacity.
func sizing(o *options.Options) *hubble.Sizing {
	if o.EventBufferCapacity != 0 {
		return nil
	}
	return &hubble.Sizing{Least: options.AutoCapacity, Most: options.MaxCapacity, Keep: options.AutoKeep}
}

// RecordL7 writes records of the proxy, after what the datapath has reported before them.
func (h *Observer) RecordL7(list []control.Record) {
	now, err := event.Monotonic()
	if h.recorder == nil || err != nil {
		return
	}
	h.state.Hub.Pull()
	boot := time.Now().Add(-now)
	for _, r := range list {
		h.recorder.L7(r, func(at time.Time) time.Duration { return at.Sub(boot) })
	}
}

// LostL7 notes records of the proxy that were not read in time.
func (h *Observer) LostL7(n uint64) {
	if now, err := event.Monotonic(); err == nil && h.recorder != nil {
		h.recorder.Lost(flowpb.LostEventSource_OBSERVER_EVENTS_QUEUE, n, now)
	}
}

// serve opens the API.
func (h *Observer) serve() {
	c := &h.Config.Hubble
	h.server = &hubble.Server{
		Log: h.Log, Observer: h.observer, Socket: cmp.Or(c.SocketPath, filepath.Join(h.Config.Myelin.RunDir,
			api.ObserverSocket)),
		Address: c.ListenAddress,
		Peers: &hubble.Peers{
			DB: h.DB, Nodes: h.Cluster.Nodes, Cluster: h.Config.ClusterName, Port: h.port(), IPv6: c.PreferIPv6,
			TLS: h.tls(),
		},
	}
	if h.tls() {
		files := tlsfile.Files{Cert: c.CertFile, Key: c.KeyFile}
		if c.CAFile != "" {
			files.CAs = []string{c.CAFile}
		}
		h.server.TLS = tlsfile.New(files)
	}
	h.server.Start()
}

// tls reports whether nodes have certificates for the API.
func (h *Observer) tls() bool {
	return h.Config.Hubble.TLS && h.Config.Hubble.CertFile != ""
}

// port is where this node listens, and so the others.
func (h *Observer) port() uint16 {
	_, text, err := net.SplitHostPort(h.Config.Hubble.ListenAddress)
	port, err2 := strconv.ParseUint(text, 10, 16)
	if err != nil || err2 != nil {
		return hubble.DefaultPort
	}
	return uint16(port)
}

// self is this node as Hubble lists nodes.
func (h *Observer) self() *observerpb.Node {
	c := h.Config
	n := &observerpb.Node{
		Name: hubble.NodeName(c.ClusterName, c.Myelin.NodeName), Version: h.Version,
		Tls: &observerpb.TLS{Enabled: h.tls()},
	}
	if h.tls() {
		n.Tls.ServerName = hubble.ServerName(c.ClusterName, c.Myelin.NodeName)
	}
	for _, l := range h.server.Listeners() {
		n.Address = l.Address // the last one is by TCP, if there is one
	}
	return n
}

// bootID identifies the node since it was booted.
func bootID(node string) (id [8]byte, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id, fmt.Errorf("read the ID of the boot: %w", err)
	}
	sum := sha256.Sum256(append(boot, node...))
	copy(id[:], sum[:])
	return id, nil
}

// idleTicks is the interval in seconds at which events are read while no client asks for them. It can be long: the
// kernel's buffer keeps them.
const idleTicks = 10

// tick samples the rate of flows, and notes what the kernel could not tell.
func (h *Observer) tick(ctx context.Context) error {
	t := ticker.New()
	for i := 1; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-t.Next(time.Second):
		}
		// A ring that has grown keeps more than the kernel does.
		if i%idleTicks != 0 && !h.state.Hub.Following() && !(h.observer.Sizing != nil && h.state.Hub.Filling()) {
			continue
		}
		h.observer.Sample()
		_, lost := h.state.Hub.Lost()
		if lost <= h.lost {
			continue
		}
		if now, err := event.Monotonic(); err == nil {
			h.recorder.Lost(flowpb.LostEventSource_PERF_EVENT_RING_BUFFER, lost-h.lost, now)
			h.lost = lost
		}
	}
}

func (h *Observer) stop() error {
	if h.server != nil {
		h.server.Stop()
	}
	if h.sub != nil {
		h.sub.Close()
	}
	return nil
}

// status is the line of `myelin status`.
func (h *Observer) status() feature.Status {
	s := feature.Status{Name: "Hubble", State: feature.Off, Wanted: "hubble.enabled: false", Chosen: "off"}
	if h.recorder == nil {
		return s
	}
	s.State, s.Wanted = feature.OK, "hubble.enabled: true"
	kept, capacity := h.observer.Kept(), h.observer.Ring.Capacity()
	s.Chosen = fmt.Sprintf("current/max flows %d/%d (%.2f %%), %.2f flows/s", kept, capacity,
		100*float64(kept)/float64(capacity), h.observer.Rate())
	if sizing := h.observer.Sizing; sizing != nil {
		s.Chosen += fmt.Sprintf(", max for %.0f s of them, from %d to %d", sizing.Keep.Seconds(), sizing.Least,
			sizing.Most)
	}
	if h.problem != nil {
		s.Break("no flows are recorded: " + h.problem.Error())
	}
	for i, l := range h.server.Listeners() {
		if l.Err != nil {
			s.Break(fmt.Sprintf("does not listen on %s: %v", l.Address, l.Err))
			continue
		}
		if i == 0 || s.Why == "" {
			s.Why = "listens on " + l.Address
		} else {
			s.Why += " and " + l.Address
		}
	}
	if n := h.observer.Ring.Overtaken(); n > 0 {
		s.Why += fmt.Sprintf("; clients were too slow for %d events: increase hubble.eventBufferCapacity", n)
	}
	return s
}

// lostHelp is the help of the metric that counts lost events by source.
const lostHelp = "Events that were lost in the ring buffer of the kernel, or of Hubble for a client that was too " +
	"slow; of source aggregation, packets that the events of their flow do not count."

func (h *Observer) metrics(s feature.Sink) {
	if h.recorder == nil {
		return
	}
	ring := h.observer.Ring
	s.Gauge("myelin_hubble_flows", "Flows that are kept.", float64(h.observer.Kept()), nil)
	s.Gauge("myelin_hubble_flows_max", "Flows that can be kept.", float64(ring.Capacity()), nil)
	s.Counter("myelin_hubble_flows_seen_total", "Flows that were recorded since the agent started.",
		float64(ring.Flows()), nil)
	_, lost := h.state.Hub.Lost()
	s.Counter("myelin_hubble_lost_events_total", lostHelp, float64(lost),
		prometheus.Labels{"source": "perf_event_ring_buffer"})
	s.Counter("myelin_hubble_lost_events_total", lostHelp, float64(ring.Overtaken()),
		prometheus.Labels{"source": "hubble_ring_buffer"})
	uncounted, err := drop.Counters{Cpus: h.Datapath.Cpus}.UncountedPackets()
	if err != nil {
		s.Failed("myelin_hubble_lost_events_total", err)
		return
	}
	s.Counter("myelin_hubble_lost_events_total", lostHelp, float64(uncounted),
		prometheus.Labels{"source": "aggregation"})
}
