package agent

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/cilium/statedb"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/config"
	"myelin/flow"
	"myelin/flow/tracking"
	"myelin/internal/table"
	"myelin/service"
	"myelin/service/healthcheck"
	"myelin/service/maglev"
	servicemaps "myelin/service/maps"
	"myelin/service/nat"
	"myelin/service/serviceapi"
	"myelin/service/stats"
	"myelin/service/termination"
)

// sockets says how far Services at the socket are.
type sockets struct {
	mu       sync.Mutex
	attached bool
	why      string
}

// Status reports whether the programs are attached, and if not, why.
func (s *sockets) Status() (attached bool, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached, s.why
}

func (s *sockets) set(attached bool, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached, s.why = attached, why
}

// services is the features service API and services: Kubernetes Services, and those
// that are programmed by API.
type services struct {
	*feature.Node
	server    func() *serviceapi.Server
	network   *network
	endpoints *endpoints
	flows     *tracking.Tracking
	names     func() names

	api        *serviceapi.Manager // nil if Services are off
	services   *service.Services   // nil if Services are off
	stats      *stats.Stats        // nil if Services are off
	served     *flow.Expiry[bpf.DatapathNatTuple, bpf.DatapathNatEntry]
	sockets    sockets
	terminator *termination.Terminator // nil if Services are off
	checks     *healthcheck.Server     // nil if health check node ports are not served
}

func (sv *services) feature() *feature.Feature {
	return &feature.Feature{
		Name: "services", Start: sv.start, Stop: sv.stop, Settings: sv.settings, XDP: sv.Config.PerPacket,
		Lists: sv.lists, Refuse: sv.refuse, Counts: sv.counts, Metrics: sv.metrics,
		Commands: sv.commands(),
		Status:   func() []feature.Status { return []feature.Status{sv.statsStatus()} },
		Rights: []feature.Right{
			{Resources: []string{"services"}, Verbs: []string{"list", "watch"}},
			{Group: "discovery.k8s.io", Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
		},
	}
}

func (sv *services) settings(s *bpf.Settings) {
	sv.socketSettings(s)
	sv.portSettings(s)
}

func (sv *services) stop() error {
	if sv.checks != nil {
		sv.checks.Close()
	}
	return nil
}

// start fills the tables of Services. Packets use them at once, sockets when
// everything that is known at the start is in the maps: until then they keep
// what the agent before had.
func (sv *services) start(ctx context.Context) error {
	if !sv.Config.SocketLB.Enabled {
		sv.sockets.set(false, "socketLB.enabled is false")
		if err := sv.Datapath.DetachSockets(); err != nil {
			return err
		}
	}
	if !sv.Config.Services() {
		return nil
	}
	lastService, lastBackend, err := servicemaps.LastNumbers(sv.Datapath)
	if err != nil {
		return err
	}
	held, err := servicemaps.HeldAddresses(sv.Datapath)
	if err != nil {
		return err
	}
	services, err := service.New(service.Params{
		LastService: lastService, LastBackend: lastBackend, Held: held,
		DB: sv.DB, Tables: sv.Cluster, Config: sv.serviceConfig(), Node: sv.Config.Myelin.NodeName,
		Dir: sv.Config.Myelin.RunDir, Log: sv.Log,
	})
	if err != nil {
		return err
	}
	kernel, err := servicemaps.New(servicemaps.Params{
		Log: sv.Log, DB: sv.DB, Tables: services.Desired, Datapath: sv.Datapath,
		Maglev: maglev.Config{Size: sv.Config.Maglev.TableSize, Seed: xxhash.Sum64String(sv.Config.Maglev.HashSeed)},
	})
	if err != nil {
		return err
	}
	sv.stats = kernel.Stats()
	kernel.Reconcile(sv.Group)
	if err := sv.startChecks(services.Desired.Checks); err != nil {
		return err
	}
	sv.terminator = termination.New(termination.Params{
		Log: sv.Log, Datapath: sv.Datapath, WaitInitialized: kernel.WaitInitialized,
		BackendGone: kernel.UDPBackendGone(), Namespaces: sv.podNamespaces,
	})
	sv.served = nat.NewCollector(sv.Datapath, sv.Log)
	sv.services, sv.server().Services = services, services // requests use it from now on
	sv.Go("services", services.Run)
	sv.Go("sockets", sv.terminator.Run)
	if sv.Config.PerPacket() {
		sv.Go("served", sv.served.Run)
		sv.Go("host", func(ctx context.Context) error { return sv.followHost(ctx, kernel) })
	}
	if err := sv.waitServices(ctx); err != nil || !sv.Config.SocketLB.Enabled {
		return err
	}
	return sv.attachSockets()
}

// attachSockets lets sockets use Services. Where that can't be, all else works.
func (sv *services) attachSockets() error {
	if sv.Config.SocketLB.HostNamespaceOnly && sv.Loaded.SocketHostOnly == 0 {
		sv.Log.Warn("socketLB.hostNamespaceOnly has no effect, pods get Services too: before kernel 5.14 namespaces " +
			"can't be told apart")
	}
	cgroup, err := sv.Config.Cgroup("/proc") // holds all pods, and the host's own processes
	if err == nil {
		err = sv.Datapath.AttachSockets(cgroup, sv.Loaded.BindProtection != 0)
	}
	if err != nil {
		sv.sockets.set(false, err.Error())
		sv.Log.Error("Services don't work at sockets", "error", err)
		return nil
	}
	sv.sockets.set(true, "")
	return nil
}

// startChecks serves health check node ports.
func (sv *services) startChecks(checks statedb.RWTable[*service.Check]) error {
	if !sv.Config.NodePort.EnableHealthCheck {
		return nil
	}
	sv.checks = &healthcheck.Server{Log: sv.Log, Listen: net.Listen}
	_, err := table.Register(sv.Log, sv.DB, sv.Group, checks, service.CheckStatus, sv.checks)
	return err
}

// socketSettings are what programs at sockets are loaded with.
func (sv *services) socketSettings(s *bpf.Settings) {
	if !sv.Config.SocketLB.Enabled {
		return
	}
	s.SetRetval = flag(bpf.HaveSetRetval())
	if cookie, err := bpf.NetnsCookie(); err == nil && cookie != 0 {
		s.SocketHostOnly, s.BindProtection = flag(sv.Config.SocketLB.HostNamespaceOnly),
			flag(sv.Config.NodePort.BindProtection)
		s.NetnsCookie = cookie
	}
}

// portSettings are whose ports of the node's addresses are, and whether packets are translated for Services.
func (sv *services) portSettings(s *bpf.Settings) {
	pods := sv.Config.MasqueradePorts()
	s.NatPortMin, s.NatPortMax = pods.First, pods.Last
	if !sv.Config.PerPacket() {
		return
	}
	clients, nodes := sv.Config.ClientPorts(), sv.Config.NodePort.Range
	s.Services, s.Direct, s.NoBackendDrop = 1, flag(sv.Config.Direct()), flag(sv.Config.NoBackendResponse == "drop")
	s.LbMode = uint8(map[string]bpf.DatapathLbMode{
		"snat": bpf.DatapathLbModeLB_SNAT, "dsr": bpf.DatapathLbModeLB_DSR, "hybrid": bpf.DatapathLbModeLB_HYBRID,
	}[sv.Config.LoadBalancer.Mode])
	s.LbDispatch = uint8(dispatch(sv.Config))
	if p := sv.Config.LoadBalancer.RSSIPv4; p.IsValid() {
		s.Rss4, s.Rss4Bits = bpf.Addr(p.Masked().Addr()), uint8(p.Bits())
	}
	if p := sv.Config.LoadBalancer.RSSIPv6; p.IsValid() {
		s.Rss6, s.Rss6Bits = bpf.Addr(p.Masked().Addr()), uint8(p.Bits())
	}
	s.Quic = flag(sv.Config.QUIC())
	s.LbPortMin, s.LbPortMax = clients.First, clients.Last
	s.NodePortMin, s.NodePortMax = nodes.First, nodes.Last
}

// dispatch is how packets get to backends whose node answers itself.
func dispatch(c *config.Config) bpf.DatapathLbDispatch {
	if !c.Direct() || c.Tunneled() {
		return bpf.DatapathLbDispatchDISPATCH_OPTION
	}
	return map[string]bpf.DatapathLbDispatch{
		"opt": bpf.DatapathLbDispatchDISPATCH_OPTION, "ipip": bpf.DatapathLbDispatchDISPATCH_IPIP,
		"geneve": bpf.DatapathLbDispatchDISPATCH_GENEVE,
	}[c.LoadBalancer.DSRDispatch]
}

// podNamespaces are those whose sockets end with their backend.
func (sv *services) podNamespaces() []string {
	if !sv.Config.SocketLB.TerminatePodConnections || sv.Loaded.SocketHostOnly != 0 {
		return nil
	}
	paths := map[string]bool{}
	for e := range sv.endpoints.table.All(sv.DB.ReadTxn()) {
		if !e.Deleting() {
			paths[e.NetNS] = true
		}
	}
	return slices.Sorted(maps.Keys(paths))
}

func (sv *services) serviceConfig() service.Config {
	ports := sv.Config.NodePort.Range
	return service.Config{
		NodePorts:           service.PortRange{First: ports.First, Last: ports.Last},
		ExternalClusterIP:   sv.Config.LoadBalancer.ExternalClusterIP,
		CrossFamily:         sv.Config.NAT46x64Gateway || sv.Config.LoadBalancer.Standalone,
		SourceRangeAllTypes: sv.Config.LoadBalancer.SourceRangeAllTypes,
		Algorithm:           service.Algorithm(sv.Config.LoadBalancer.Algorithm),
		QUIC:                sv.Config.QUIC(),
		FixedAlgorithm:      !sv.Config.LoadBalancer.AlgorithmAnnotation && !sv.Config.LoadBalancer.Standalone,
		FixedForwarding:     !sv.Config.LoadBalancer.ModeAnnotation && !sv.Config.LoadBalancer.Standalone,
	}
}

// waitServices waits until what is known of Services at the start is in the kernel, or has failed.
func (sv *services) waitServices(ctx context.Context) error {
	t := sv.services.Desired
	failed, err := tried(ctx, sv.DB, t.Backends, service.BackendStatus)
	if err != nil {
		return err
	}
	more, err := tried(ctx, sv.DB, t.Frontends, service.FrontendStatus)
	if failed += more; failed > 0 {
		sv.Log.Error("not all Services are in the kernel; their lists say why", "failed", failed)
	}
	return err
}
