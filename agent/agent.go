// Package agent is the process that runs on each node: it starts the features
// of the node in the order of one list, and serves the API.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"

	"myelin/agent/feature"
	"myelin/bandwidth"
	"myelin/bigtcp"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/config"
	"myelin/encryption"
	"myelin/endpoint"
	"myelin/event"
	"myelin/flow"
	"myelin/flow/tracking"
	"myelin/hubble/observer"
	"myelin/install/host"
	"myelin/internal/logs"
	"myelin/internal/table"
	"myelin/l7"
	"myelin/policy"
	"myelin/policy/prefilter"
	"myelin/route"
	"myelin/service/flood"
	"myelin/service/serviceapi"
)

// agent is the process. Everything else is in the features.
type agent struct {
	*feature.Node
	components
	list []*feature.Feature

	recent   *logs.Recent
	version  string
	began    time.Time
	restarts restarts
	progress progress
	ready    atomic.Int64 // nanoseconds from began to ready; 0 until then
	reload   chan string  // why the programs must be loaded again

	stopGroup func(context.Context) error
	server    *server
	health    health
	metrics   *metrics
}

// components are the features whose state the API or other features read.
type components struct {
	source     *clusterSource
	identities *identities
	network    *network
	own        *ownNode
	datapath   *datapath
	flows      *tracking.Tracking
	policies   *policies
	endpoints  *endpoints
	services   *services
	balancer   *loadBalancer
	hubble     *observer.Observer
	l7         *l7.Feature
	bigTCP     *bigtcp.Feature
}

// newAgent wires the features; nothing is started.
func newAgent(c *config.Config, version string, log *slog.Logger, recent *logs.Recent) *agent {
	a := &agent{
		Node: &feature.Node{Log: log, Config: c}, recent: recent, version: version,
		began: time.Now(), reload: make(chan string, 1),
	}
	a.source = &clusterSource{Node: a.Node, version: version}
	a.identities = &identities{Node: a.Node}
	a.network = &network{Node: a.Node, progress: &a.progress, xdp: a.xdp}
	a.own = &ownNode{Node: a.Node, progress: &a.progress, source: a.source, network: a.network}
	a.datapath = &datapath{
		Node: a.Node, features: func() []*feature.Feature { return a.list }, memory: memory, load: bpf.Load,
	}
	a.flows = &tracking.Tracking{
		Node: a.Node, Names: func() event.Names { return a.names() }, Pod: a.podOf,
		Publish: func(e *event.Raw) { a.datapath.hub.Publish(e) }, NATEntries: a.natEntries,
		Growth: func() (int, string) { return a.datapath.growth.limit, a.datapath.growth.stuck },
	}
	a.endpoints = &endpoints{Node: a.Node, network: a.network, own: a.own, identities: a.identities}
	a.bigTCP = &bigtcp.Feature{Node: a.Node, Routes: func() *route.Routes { return a.network.routes },
		Endpoints: func() statedb.Table[*endpoint.Endpoint] { return a.endpoints.table }}
	a.endpoints.bigTCP = a.bigTCP
	a.hubble = a.newObserver()
	a.l7 = l7.New(a.Node, l7.Params{Version: version, MTU: func() (int, int) {
		c := a.own.podConfig()
		return c.MTU, c.RouteMTU
	}, Record: a.hubble.RecordL7, Lost: a.hubble.LostL7, Policies: func(slot uint16) map[uint32][]string {
		return a.policies.byName(slot)
	}})
	a.policies = &policies{
		Node: a.Node, source: a.source, identities: a.identities, endpoints: a.endpoints, flows: a.flows,
		names: a.names, l7: a.l7,
	}
	a.services = &services{Node: a.Node, network: a.network, endpoints: a.endpoints, flows: a.flows, names: a.names}
	a.balancer = &loadBalancer{Node: a.Node, services: a.services}
	a.services.server = func() *serviceapi.Server { return a.server.services }
	a.policies.services = a.services
	a.source.policies, a.source.own = a.policies, a.own
	a.network.own, a.network.endpoints = a.own, a.endpoints
	a.own.endpoints, a.own.services = a.endpoints, a.services
	a.datapath.services = a.services
	a.endpoints.policies = a.policies
	a.list = a.features()
	return a
}

// features is the list of all features, in the order in which they start.
func (a *agent) features() []*feature.Feature {
	return []*feature.Feature{
		{Name: "health", Start: a.startHealth},
		{Name: "tables", Start: a.startTables, Commands: a.commands()},
		a.source.slices(),
		a.services.apiFeature(),
		a.source.feature(),
		{Name: "API", Start: a.startServer},
		a.identities.feature(),
		a.network.routesFeature(),
		a.own.feature(),
		a.network.tunnelFeature(),
		(&encryption.Feature{Node: a.Node, Version: a.version, Routes: func() *route.Routes { return a.network.routes },
			Attached: a.network.attached.Get, Publish: a.source.publishKey, PublishIPsec: a.source.publishIPsec,
			Obstacle: a.progress.waitsFor}).Feature(),
		a.datapath.feature(),
		a.datapath.eventsFeature(),
		a.flows.Feature(),
		a.network.nodeFeature(),
		a.services.checksFeature(),
		a.l7.Feature(),
		a.policies.feature(),
		prefilter.Feature(a.Node, prefilter.Params{Groups: a.groups, XDP: a.network.xdpStates}),
		a.bigTCP.Feature(),
		a.endpoints.feature(),
		(&bandwidth.Feature{Node: a.Node, Devices: func() statedb.Table[*route.Device] {
			return a.network.routes.Devices
		}, Endpoints: func() statedb.Table[*endpoint.Endpoint] { return a.endpoints.table }}).Feature(),
		a.services.feature(),
		flood.Feature(a.Node, a.natEntries),
		a.balancer.feature(),
		a.hubble.Feature(),
		a.hubble.Consumers(),
		a.cniFeature(),
	}
}

func (a *agent) podOf(slot uint16) string { return a.endpoints.podOf(slot) }

func (a *agent) natEntries() *flow.Shares {
	if a.services.served == nil {
		return nil
	}
	return a.services.served.Shares
}

func (a *agent) groups() statedb.Table[*policy.Group] { return a.policies.tables.Groups }

// xdp is the mode that loadBalancer.acceleration asks for, if a feature has
// work for XDP.
func (a *agent) xdp() bpf.XDPMode {
	for _, f := range a.list {
		if f.XDP != nil && f.XDP() {
			return acceleration(a.Config)
		}
	}
	return bpf.XDPNone
}

func acceleration(c *config.Config) bpf.XDPMode {
	return map[string]bpf.XDPMode{
		"native": bpf.XDPNative, "best-effort": bpf.XDPNative, "testing-only": bpf.XDPGeneric,
	}[c.LoadBalancer.Acceleration]
}

// handoverTimeout is how long an agent waits for the one before it to end.
const handoverTimeout = 15 * time.Second

// Run brings the node's network up, serves until ctx ends, and stops. version
// is that of the build, recent keeps the last lines of log. The datapath
// continues to forward afterwards. If the programs must be loaded again, Run
// stops and starts all features in the same process.
func Run(ctx context.Context, c *config.Config, version string, log *slog.Logger, recent *logs.Recent) error {
	paths := host.Paths{RunDir: c.Myelin.RunDir, BPFRoot: c.Myelin.BPFRoot}
	release, err := host.AcquireLock(ctx, paths, handoverTimeout, log)
	if err != nil {
		return err
	}
	defer release()
	past := restarts{}
	for {
		a := newAgent(c, version, log, recent)
		a.restarts, a.datapath.need, a.datapath.again = past, past.need, past.count > 0
		why, err := a.run(ctx)
		if err != nil || why == "" {
			return err
		}
		past = restarts{count: past.count + 1, why: why, at: time.Now(), need: a.datapath.needs()}
	}
}

// run starts the features, serves, and stops them. It returns why they must be
// started again, empty if not.
func (a *agent) run(ctx context.Context) (again string, err error) {
	err = a.start(ctx)
	if err == nil {
		a.takeOverFlows()
		a.ready.Store(int64(time.Since(a.began)))
		endpoints := a.endpoints.table.NumObjects(a.DB.ReadTxn())
		a.Log.Info("ready", "node", a.Config.Myelin.NodeName, "took", a.readyAfter(), "endpoints", endpoints)
		a.Go("reload", a.watchReload)
		a.Go("growth", a.watchGrowth)
		again, err = a.serve(ctx)
	}
	if ctx.Err() != nil {
		again, err = "", nil
	}
	return again, errors.Join(err, a.stop())
}

func (a *agent) start(ctx context.Context) error {
	for _, f := range a.list {
		begin := time.Now()
		a.progress.starting(f.Name)
		if f.Start == nil {
			continue
		}
		if err := f.Start(ctx); err != nil {
			return fmt.Errorf("start %s: %w", f.Name, err)
		}
		a.Log.Debug("started", "part", f.Name, "took", time.Since(begin))
	}
	return nil
}

// startTables creates the database, the job group, and the tables that sources
// or several features write.
func (a *agent) startTables(ctx context.Context) error {
	a.DB = statedb.New()
	if err := a.DB.Start(); err != nil {
		return err
	}
	var start func(context.Context) error
	a.Group, start, a.stopGroup = table.Group(a.Log)
	if err := start(ctx); err != nil {
		return err
	}
	a.Go("memory", giveBack)
	var err error
	if a.Cluster, err = cluster.NewTables(a.DB); err != nil {
		return err
	}
	for _, f := range a.list {
		if f.Tables == nil {
			continue
		}
		if err := f.Tables(); err != nil {
			return err
		}
	}
	return nil
}

// startServer creates the API. Its socket opens at the end of the start, or
// when the start meets an obstacle.
func (a *agent) startServer(context.Context) error {
	a.server = newServer(a)
	a.progress.met = a.server.openEarly
	return nil
}

// serve blocks until ctx ends, the API fails, or the programs must be loaded
// again.
func (a *agent) serve(ctx context.Context) (again string, err error) {
	select {
	case <-ctx.Done():
		a.Log.Info("stopping; pods go on")
		return "", nil
	case err := <-a.server.failed:
		return "", err
	case why := <-a.reload:
		a.Log.Warn("reloading the datapath; pods go on", "why", why)
		return why, nil
	}
}

// readyAfter is how long the start took, 0 before the agent is ready.
func (a *agent) readyAfter() time.Duration { return time.Duration(a.ready.Load()) }

// stopTimeout bounds a graceful stop.
const stopTimeout = 5 * time.Second

func (a *agent) stop() error {
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
	for _, f := range slices.Backward(a.list) {
		if f.Stop != nil {
			errs = append(errs, f.Stop())
		}
	}
	if a.DB != nil {
		errs = append(errs, a.DB.Stop())
	}
	return errors.Join(errs...)
}
