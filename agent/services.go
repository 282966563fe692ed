package agent

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/service"
	"myelin/service/healthcheck"
	"myelin/service/maglev"
	servicemaps "myelin/service/maps"
	"myelin/service/nat"
	"myelin/service/termination"
	"myelin/table"
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

// startServices fills the tables of Services, which packets use at once, and lets sockets use them when all that is known at the start is in the maps: a
// Service that is known later is used later, and one that is not known yet must not lose what an agent before us knew.
func (a *Agent) startServices(ctx context.Context) error {
	if !a.config.SocketLB.Enabled {
		a.sockets.set(false, "socketLB.enabled is false")
		if err := a.datapath.DetachSockets(); err != nil {
			return err
		}
	}
	if !a.config.Services() {
		return nil
	}
	lastService, lastBackend, err := servicemaps.LastNumbers(a.datapath)
	if err != nil {
		return err
	}
	held, err := servicemaps.HeldAddresses(a.datapath)
	if err != nil {
		return err
	}
	services, err := service.New(service.Params{
		LastService: lastService, LastBackend: lastBackend, Held: held,
		DB: a.db, Tables: a.cluster, Config: a.serviceConfig(), Node: a.config.Myelin.NodeName, Dir: a.config.Myelin.RunDir, Log: a.log,
	})
	if err != nil {
		return err
	}
	kernel, err := servicemaps.New(servicemaps.Params{
		Log: a.log, DB: a.db, Tables: services.Desired, Datapath: a.datapath,
		Maglev: maglev.Config{Size: a.config.Maglev.TableSize, Seed: xxhash.Sum64String(a.config.Maglev.HashSeed)},
	})
	if err != nil {
		return err
	}
	kernel.Reconcile(a.group)
	if err := a.startChecks(services.Desired.Checks); err != nil {
		return err
	}
	a.terminator = termination.New(termination.Params{
		Log: a.log, Datapath: a.datapath, WaitInitialized: kernel.WaitInitialized, BackendGone: kernel.UDPBackendGone(),
		Namespaces: a.podNamespaces,
	})
	a.served = nat.NewCollector(a.datapath, a.log)
	a.services, a.server.services.Services = services, services // from now on somebody may ask
	a.group.Add(
		job.OneShot("services", func(ctx context.Context, _ cell.Health) error { return services.Run(ctx) }),
		job.OneShot("sockets", func(ctx context.Context, _ cell.Health) error { return a.terminator.Run(ctx) }),
	)
	if a.config.PerPacket() {
		a.group.Add(job.OneShot("served", func(ctx context.Context, _ cell.Health) error { return a.served.Run(ctx) }))
		a.group.Add(job.OneShot("host", func(ctx context.Context, _ cell.Health) error { return a.followHost(ctx, kernel) }))
	}
	if err := a.waitServices(ctx); err != nil || !a.config.SocketLB.Enabled {
		return err
	}
	return a.attachSockets()
}

// attachSockets lets sockets use Services. Where that can't be, all else works.
func (a *Agent) attachSockets() error {
	if a.config.SocketLB.HostNamespaceOnly && a.loaded.SocketHostOnly == 0 {
		a.log.Warn("socketLB.hostNamespaceOnly has no effect, pods get Services too: before kernel 5.14 namespaces can't be told apart")
	}
	cgroup, err := a.config.Cgroup("/proc") // holds all pods, and the host's own processes
	if err == nil {
		err = a.datapath.AttachSockets(cgroup, a.loaded.BindProtection != 0)
	}
	if err != nil {
		a.sockets.set(false, err.Error())
		a.log.Error("Services don't work at sockets", "error", err)
		return nil
	}
	a.sockets.set(true, "")
	return nil
}

// startChecks serves health check node ports.
func (a *Agent) startChecks(checks statedb.RWTable[*service.Check]) error {
	if !a.config.NodePort.EnableHealthCheck {
		return nil
	}
	a.checks = &healthcheck.Server{Log: a.log, Listen: net.Listen}
	_, err := table.Register(a.log, a.db, a.group, checks, service.CheckStatus, a.checks)
	return err
}

// socketSettings are what programs at sockets are loaded with.
func (a *Agent) socketSettings(s *bpf.Settings) {
	if !a.config.SocketLB.Enabled {
		return
	}
	s.SetRetval = flag(bpf.HaveSetRetval())
	if cookie, err := bpf.NetnsCookie(); err == nil && cookie != 0 {
		s.SocketHostOnly, s.BindProtection = flag(a.config.SocketLB.HostNamespaceOnly), flag(a.config.NodePort.BindProtection)
		s.NetnsCookie = cookie
	}
}

// portSettings are whose ports of the node's addresses are, and whether packets are translated for Services.
func (a *Agent) portSettings(s *bpf.Settings) {
	pods := a.config.MasqueradePorts()
	s.NatPortMin, s.NatPortMax = pods.First, pods.Last
	if !a.config.PerPacket() {
		return
	}
	clients, nodes := a.config.ClientPorts(), a.config.NodePort.Range
	s.Services, s.Direct, s.NoBackendDrop = 1, flag(a.config.Direct()), flag(a.config.NoBackendResponse == "drop")
	s.LbMode = uint8(map[string]bpf.DatapathLbMode{
		"snat": bpf.DatapathLbModeLB_SNAT, "dsr": bpf.DatapathLbModeLB_DSR, "hybrid": bpf.DatapathLbModeLB_HYBRID,
	}[a.config.LoadBalancer.Mode])
	s.LbDispatch = uint8(a.dispatch())
	if p := a.config.LoadBalancer.RSSIPv4; p.IsValid() {
		s.Rss4, s.Rss4Bits = bpf.Addr(p.Masked().Addr()), uint8(p.Bits())
	}
	if p := a.config.LoadBalancer.RSSIPv6; p.IsValid() {
		s.Rss6, s.Rss6Bits = bpf.Addr(p.Masked().Addr()), uint8(p.Bits())
	}
	s.LbPortMin, s.LbPortMax = clients.First, clients.Last
	s.NodePortMin, s.NodePortMax = nodes.First, nodes.Last
}

// dispatch is how packets get to backends whose node answers itself.
func (a *Agent) dispatch() bpf.DatapathLbDispatch {
	if !a.config.Direct() || a.tunneled() {
		return bpf.DatapathLbDispatchDISPATCH_OPTION
	}
	return map[string]bpf.DatapathLbDispatch{
		"opt": bpf.DatapathLbDispatchDISPATCH_OPTION, "ipip": bpf.DatapathLbDispatchDISPATCH_IPIP, "geneve": bpf.DatapathLbDispatchDISPATCH_GENEVE,
	}[a.config.LoadBalancer.DSRDispatch]
}

// xdp is how known flows of Services, and who may not come in, are wanted before tc.
func (a *Agent) xdp() bpf.XDPMode {
	if !a.config.PerPacket() && len(a.config.Policy.Prefilter) == 0 {
		return bpf.XDPNone
	}
	return map[string]bpf.XDPMode{"native": bpf.XDPNative, "best-effort": bpf.XDPNative, "testing-only": bpf.XDPGeneric}[a.config.LoadBalancer.Acceleration]
}

// podNamespaces are those whose sockets end with their backend.
func (a *Agent) podNamespaces() []string {
	if !a.config.SocketLB.TerminatePodConnections || a.loaded.SocketHostOnly != 0 {
		return nil
	}
	paths := map[string]bool{}
	for e := range a.endpoints.All(a.db.ReadTxn()) {
		if !e.Deleting() {
			paths[e.NetNS] = true
		}
	}
	return slices.Sorted(maps.Keys(paths))
}

func (a *Agent) serviceConfig() service.Config {
	ports := a.config.NodePort.Range
	return service.Config{
		NodePorts:           service.PortRange{First: ports.First, Last: ports.Last},
		ExternalClusterIP:   a.config.BPF.LBExternalClusterIP,
		CrossFamily:         a.config.NAT46x64Gateway || a.standalone(),
		SourceRangeAllTypes: a.config.BPF.LBSourceRangeAllTypes, Algorithm: service.Algorithm(a.config.LoadBalancer.Algorithm),
		FixedAlgorithm:  !a.config.BPF.LBAlgorithmAnnotation && !a.standalone(),
		FixedForwarding: !a.config.BPF.LBModeAnnotation && !a.standalone(),
	}
}

// waitServices waits until what is known of Services at the start is in the kernel, or has failed.
func (a *Agent) waitServices(ctx context.Context) error {
	t := a.services.Desired
	failed, err := tried(ctx, a.db, t.Backends, service.BackendStatus)
	if err != nil {
		return err
	}
	more, err := tried(ctx, a.db, t.Frontends, service.FrontendStatus)
	if failed += more; failed > 0 {
		a.log.Error("not all Services are in the kernel; their lists say why", "failed", failed)
	}
	return err
}
