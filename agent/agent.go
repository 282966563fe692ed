// Package agent is the process that runs on each node. It constructs every
// part in order; the order is the documentation.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/cni"
	"myelin/config"
	"myelin/endpoint"
	"myelin/endpoint/podlink"
	"myelin/event"
	"myelin/flow"
	"myelin/gateway"
	"myelin/host"
	"myelin/identity"
	"myelin/ipam"
	"myelin/kube"
	"myelin/logs"
	"myelin/manifests"
	"myelin/node"
	"myelin/policy"
	"myelin/policy/engine"
	"myelin/policy/prefilter"
	"myelin/route"
	"myelin/service"
	"myelin/table"
	"myelin/tunnel"
)

// Agent is everything that runs on a node.
type Agent struct {
	log     *slog.Logger
	recent  *logs.Recent
	config  *config.Config
	version string
	began   time.Time

	lives     lives
	progress  progress
	db        *statedb.DB
	group     job.Group
	stopGroup func(context.Context) error

	cluster   cluster.Tables
	outsiders *cluster.Outsiders
	policies  policy.Tables
	engine    *engine.Engine       // nil where policies are not enforced
	prefilter *prefilter.Prefilter // nil where everybody may come in
	gateway   *gateway.Gateway     // nil where Services are off
	manifests *manifests.Source    // nil without a directory
	kube      *kube.Source         // nil without an API server
	// machineKnown is called with the Node that is made of the machine.
	machineKnown func(statedb.WriteTxn)
	endpoints    statedb.RWTable[*endpoint.Endpoint]
	// restorable is called when the manager has registered that it will restore
	// endpoints: until then nobody may think that there are none.
	restorable func(statedb.WriteTxn)
	routes     *route.Routes
	tunnels    *tunnel.Tunnels
	identities *identity.Identities
	datapath   *bpf.Datapath
	services   *service.Services // nil where Services are off
	served     *flow.Expiry[bpf.DatapathTranslationKey, bpf.DatapathTranslation]
	sockets    sockets
	hostServes node.Switch
	terminator *service.Terminator  // nil where Services are off
	checks     *service.CheckServer // nil where health check node ports are not served
	epochs     *bpf.Epochs
	// tunnelIndex is that of the tunnel's device when the programs were loaded,
	// and loaded all that they were loaded with.
	tunnelIndex int
	loaded      bpf.Settings
	node        *node.Node
	ipam        *ipam.Allocator
	podCIDRs    statedb.RWTable[*ipam.Assignment]
	assigned    func(statedb.WriteTxn) // called with the first row of podCIDRs
	unsaved     atomic.Bool            // the row of podCIDRs is in no file
	host        *netlink.Handle
	manager     *endpoint.Manager
	hub         *event.Hub
	usages      *bpf.Usages
	collector   *flow.Collector
	server      *server
	health      health
	metrics     *metrics
	ready       atomic.Int64 // nanoseconds from begin to ready; 0 until then
	reload      chan string  // why the programs must be loaded again
}

// lastWords is how long an agent waits for the one before it to end.
const lastWords = 15 * time.Second

// Run brings the node's network up, serves until ctx ends, and stops. version
// is what the build says, recent keeps the last lines of log. What was set up goes on forwarding
// after it. Where what the programs were loaded with has changed, it does all
// of that again, which loses as little as a restart: nothing.
func Run(ctx context.Context, c *config.Config, version string, log *slog.Logger, recent *logs.Recent) error {
	release, err := host.Alone(ctx, host.Places{RunDir: c.Myelin.RunDir, BPFRoot: c.Myelin.BPFRoot}, lastWords, log)
	if err != nil {
		return err
	}
	defer release()
	past := lives{}
	for {
		a := &Agent{
			log: log, recent: recent, config: c, version: version, began: time.Now(), lives: past, reload: make(chan string, 1),
		}
		why, err := a.live(ctx)
		if err != nil || why == "" {
			return err
		}
		past = lives{reloads: past.reloads + 1, why: why, at: time.Now()}
	}
}

// live is the agent from start to stop. It returns why there must be another
// one, if so.
func (a *Agent) live(ctx context.Context) (again string, err error) {
	err = a.start(ctx)
	if err == nil {
		a.ready.Store(int64(time.Since(a.began)))
		a.log.Info("ready", "node", a.config.Myelin.NodeName, "took", a.readyAfter(), "endpoints", a.endpoints.NumObjects(a.db.ReadTxn()))
		a.group.Add(job.OneShot("reload", a.watchReload))
		again, err = a.serve(ctx)
	}
	if ctx.Err() != nil {
		again, err = "", nil
	}
	return again, errors.Join(err, a.stop())
}

// start constructs the parts, each on those before it.
func (a *Agent) start(ctx context.Context) error {
	for _, part := range []struct {
		name  string
		start func(context.Context) error
	}{
		{"health", a.startHealth},
		{"tables", a.startTables},
		{"endpoint slices", a.startSlices},
		{"gateway", a.startGateway},
		{"cluster", a.startSource},
		{"API", a.startServer},
		{"identities", a.startIdentities},
		{"routes", a.startRoutes},
		{"own node", a.findSelf},
		{"tunnel", a.startTunnel},
		{"datapath", a.startDatapath},
		{"events", a.startEvents},
		{"node", a.startNode},
		{"policies", a.startPolicies},
		{"endpoints", a.startEndpoints},
		{"services", a.startServices},
		{"CNI", a.startCNI},
	} {
		begin := time.Now()
		a.progress.starting(part.name)
		if err := part.start(ctx); err != nil {
			return fmt.Errorf("start %s: %w", part.name, err)
		}
		a.log.Debug("started", "part", part.name, "took", time.Since(begin))
	}
	return nil
}

func (a *Agent) startTables(ctx context.Context) error {
	a.db = statedb.New()
	if err := a.db.Start(); err != nil {
		return err
	}
	var start func(context.Context) error
	a.group, start, a.stopGroup = table.Group(a.log)
	if err := start(ctx); err != nil {
		return err
	}
	a.group.Add(job.OneShot("memory", func(ctx context.Context, _ cell.Health) error { return giveBack(ctx) }))
	var err error
	if a.cluster, err = cluster.NewTables(a.db); err != nil {
		return err
	}
	if a.policies, err = policy.NewTables(a.db); err != nil {
		return err
	}
	if a.endpoints, err = endpoint.NewTable(a.db); err != nil {
		return err
	}
	if a.podCIDRs, err = ipam.NewTable(a.db); err != nil {
		return err
	}
	txn := a.db.WriteTxn(a.endpoints, a.podCIDRs)
	a.restorable = a.endpoints.RegisterInitializer(txn, "agent")
	a.assigned = a.podCIDRs.RegisterInitializer(txn, "own node")
	txn.Commit()
	return nil
}

// startIdentities numbers the cluster's label sets.
func (a *Agent) startIdentities(context.Context) error {
	if err := os.MkdirAll(a.config.Myelin.RunDir, 0o700); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	ids, err := identity.New(identity.Params{
		DB: a.db, Tables: a.cluster, Node: a.config.Myelin.NodeName, ClusterName: a.config.ClusterName,
		File: filepath.Join(a.config.Myelin.RunDir, "identities.json"),
		Log:  a.log, Now: time.Now,
	})
	if err != nil {
		return err
	}
	a.identities = ids
	a.group.Add(job.OneShot("identities", func(ctx context.Context, _ cell.Health) error { return ids.Run(ctx) }))
	return nil
}

func (a *Agent) startRoutes(context.Context) error {
	var err error
	if a.outsiders, err = cluster.NewOutsiders(a.db, a.cluster); err != nil {
		return err
	}
	a.group.Add(job.OneShot("pods-outside", func(ctx context.Context, _ cell.Health) error { return a.outsiders.Run(ctx) }))
	a.routes, err = route.New(route.Params{
		DB: a.db, Log: a.log, Group: a.group, Nodes: a.cluster.Nodes, Endpoints: a.endpoints, PodCIDRs: a.podCIDRs, Outside: a.outsiders.Rows,
		Config: a.routeConfig(), ProcSys: a.config.Myelin.SysctlRoot, Originals: filepath.Join(a.config.Myelin.RunDir, route.OriginalsFile),
	})
	return err
}

// startTunnel makes the device before the programs are loaded, which know it
// by its index.
func (a *Agent) startTunnel(ctx context.Context) error {
	var err error
	a.tunnels, err = tunnel.New(tunnel.Params{
		DB: a.db, Log: a.log, Group: a.group, Node: a.config.Myelin.NodeName, Wanted: a.tunneled(),
		Port: int(a.config.TunnelPort), Devices: a.routes.Devices, MTU: a.routes.MTU,
	})
	if err != nil || !a.tunneled() {
		return err
	}
	return a.waitTunnel(ctx)
}

func (a *Agent) startDatapath(ctx context.Context) error {
	var err error
	a.loaded = a.settings()
	a.datapath, err = bpf.Load(bpf.Options{
		Settings: a.loaded, Sizes: a.sizes(), Dir: filepath.Join(a.config.Myelin.BPFRoot, "myelin"), Log: a.log, NoTCX: !a.config.BPF.EnableTCX,
	})
	if err != nil {
		return err
	}
	a.epochs = &bpf.Epochs{Map: a.datapath.Epochs}
	return nil
}

func (a *Agent) startNode(context.Context) error {
	var err error
	a.node, err = node.New(node.Params{
		DB: a.db, Log: a.log, Group: a.group, Config: a.nodeConfig(), Nodes: a.cluster.Nodes, Devices: a.routes.Devices,
		PodCIDRs: a.podCIDRs, Outside: a.outsiders.Rows, HostServes: &a.hostServes, Datapath: a.datapath, Epochs: a.epochs,
	})
	return err
}

// startEndpoints restores the pods that are there. The reconciler is
// registered first, since Restore deletes what a crash has left.
func (a *Agent) startEndpoints(ctx context.Context) error {
	var err error
	if a.host, err = netlink.NewHandle(); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	purger := flow.NewPurger(a.datapath, a.log)
	a.group.Add(job.OneShot("rows-of-gone-pods", func(ctx context.Context, _ cell.Health) error { return purger.Run(ctx) }))
	kernel := &endpoint.Kernel{Datapath: a.datapath, Epochs: a.epochs, Follow: a.followsHost(), Netns: endpoint.LinkNetns(a.host), Administers: a.administers, Gone: purger.Forget}
	if a.engine != nil {
		kernel.Hold = a.engine.Hold
	}
	a.manager = endpoint.NewManager(a.log, a.db, a.endpoints, a.ipam, podlink.NewVeth(a.host, podlink.Options{ProcSys: a.config.Myelin.SysctlRoot, SlowPath: true}), endpoint.Config{
		RunDir: a.config.Myelin.RunDir, Node: a.podConfig,
		Ready: a.podReady, Elsewhere: a.addressElsewhere,
	})
	txn := a.db.WriteTxn(a.endpoints)
	a.restorable(txn)
	txn.Commit()
	if err := endpoint.Reconcile(a.log, a.db, a.group, a.endpoints, kernel); err != nil {
		return err
	}
	if err := a.manager.Restore(ctx); err != nil {
		return err
	}
	if _, err := a.manager.Sweep(a.host); err != nil {
		a.log.Error("pod links of unknown pods may be left", "error", err)
	}
	a.group.Add(job.OneShot("pod-links", func(ctx context.Context, _ cell.Health) error { return a.manager.Run(ctx) }))
	return a.settle(ctx)
}

// startServer makes the API, whose socket opens when the start meets an
// obstacle, or at its end.
func (a *Agent) startServer(context.Context) error {
	a.server = newServer(a)
	a.progress.met = a.server.openEarly
	return nil
}

// startCNI lets requests through that need all parts.
func (a *Agent) startCNI(ctx context.Context) error {
	a.server.cni.real.Store(cni.NewServer(a.log, a.manager, a.cniStatus))
	if a.standalone() {
		a.progress.opens()
		return a.server.open()
	}
	opened, err := cni.ReplayDeletes(ctx, a.log, a.config.Myelin.RunDir, a.manager, func() error {
		a.progress.opens()
		return a.server.open()
	})
	if !opened {
		return err
	}
	if err != nil {
		a.log.Error("some queued deletions failed and stay queued", "error", err)
	}
	if err := cni.WriteConflist(a.config.CNI.ConfPath, a.server.socket()); err != nil {
		return err
	}
	if a.config.CNI.Exclusive {
		a.startExclusive()
	}
	return nil
}

// serve blocks until ctx ends, the API fails, or there must be another life.
func (a *Agent) serve(ctx context.Context) (again string, err error) {
	select {
	case <-ctx.Done():
		a.log.Info("stopping; pods go on")
		return "", nil
	case err := <-a.server.failed:
		return "", err
	case why := <-a.reload:
		a.log.Warn("reloading the datapath; pods go on", "why", why)
		return why, nil
	}
}

// stopTimeout bounds a graceful stop.
const stopTimeout = 5 * time.Second

func (a *Agent) stop() error {
	var errs []error
	a.health.stop()
	if a.server != nil {
		a.server.stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if a.stopGroup != nil {
		errs = append(errs, a.stopGroup(ctx))
	}
	if a.checks != nil {
		a.checks.Close()
	}
	if a.routes != nil {
		a.routes.Close()
	}
	if a.tunnels != nil {
		a.tunnels.Close()
	}
	if a.manager != nil {
		a.manager.Close() // works by a.host
	}
	if a.host != nil {
		a.host.Close()
	}
	if a.datapath != nil {
		errs = append(errs, a.datapath.Close())
	}
	if a.db != nil {
		errs = append(errs, a.db.Stop())
	}
	return errors.Join(errs...)
}
