package agent

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/config"
	"myelin/internal/table"
	"myelin/service"
	"myelin/service/serviceapi"
	"myelin/service/serviceapi/probe"
	"myelin/service/serviceapi/probemap"
)

func (sv *services) apiFeature() *feature.Feature {
	return &feature.Feature{Name: "service API", Start: sv.startAPI}
}

// startAPI has the Services that are programmed by API. It comes before the
// manifests are read, so that Services don't count as complete without.
func (sv *services) startAPI(context.Context) error {
	if !sv.Config.Services() {
		return nil
	}
	var err error
	sv.api, err = serviceapi.New(serviceapi.Params{
		DB: sv.DB, Tables: sv.Cluster, Dir: filepath.Join(sv.Config.Myelin.RunDir, "services"), Log: sv.Log,
		Now: time.Now, Forwarding: service.Forwarding(sv.Config.LoadBalancer.Mode),
	})
	if err != nil {
		return err
	}
	if !sv.Config.Direct() {
		sv.Go("service-api", sv.api.Run)
		return nil
	}
	sv.tellProbes() // before the node's programs are attached
	sv.Go("health-checks", func(ctx context.Context) error {
		return table.Loop(ctx, 0, func(w *table.Watch) error {
			w.Add(sv.tellProbes())
			return nil
		})
	})
	return nil
}

// tellProbes has the datapath look at what the host sends while health checks travel by DSR. It returns a channel that
// is closed when that may have changed.
func (sv *services) tellProbes() <-chan struct{} {
	travels, changed := sv.api.Travels(sv.DB.ReadTxn())
	sv.network.hostProbes.Set(travels)
	return changed
}

// checksFeature has health checks travel as clients' packets do, where there is DSR. They begin when the programs know
// the node: without, the first results would be of direct checks.
func (sv *services) checksFeature() *feature.Feature {
	return &feature.Feature{Name: "health checks", Start: sv.startHealthChecks}
}

func (sv *services) startHealthChecks(context.Context) error {
	if sv.api == nil || !sv.Config.Direct() {
		return nil
	}
	flows, err := probemap.New(sv.Datapath, dispatchName(sv.Config))
	if err != nil {
		return err
	}
	sv.api.UseFlows(flows)
	sv.Go("service-api", sv.api.Run)
	return nil
}

// dispatchName is how DSR reaches backends, as health checks tell it.
func dispatchName(c *config.Config) probe.Via {
	return map[bpf.DatapathLbDispatch]probe.Via{
		bpf.DatapathLbDispatchDISPATCH_OPTION: "option", bpf.DatapathLbDispatchDISPATCH_IPIP: "IPIP",
		bpf.DatapathLbDispatchDISPATCH_GENEVE: "Geneve",
	}[dispatch(c)]
}

// servicesPrefix begins the names of the service Services' methods.
const servicesPrefix = "/myelin.v1.Services/"

func isServices(method string) bool { return strings.HasPrefix(method, servicesPrefix) }

// gateServices lets requests through when all that they need is there.
func (s *server) gateServices(ctx context.Context) error {
	if err := s.started(ctx); err != nil {
		return err
	}
	return s.agent.services.refuse("services")
}

// started waits until the agent is ready, or refuses with why it is not.
func (s *server) started(ctx context.Context) error {
	if err := s.agent.progress.wait(ctx, s.stopping); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// gateStream does for streams of Services and Gateway what gate does for requests.
func (s *server) gateStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	next grpc.StreamHandler) error {
	if isServices(info.FullMethod) {
		if err := s.gateServices(stream.Context()); err != nil {
			return err
		}
	}
	if isGateway(info.FullMethod) {
		if err := s.started(stream.Context()); err != nil {
			return err
		}
	}
	return next(srv, stream)
}

// healthOf is what health checks say of a backend, worst first; empty where
// none asks.
func (sv *services) healthOf(txn statedb.ReadTxn, backend service.L4Addr) string {
	if sv.api == nil {
		return ""
	}
	text := ""
	for p := range sv.api.Probes.List(txn, serviceapi.ProbesByBackend(backend)) {
		if text == "" || p.Health == serviceapi.Failing {
			text = p.Described()
		}
	}
	return text
}

// healthChecks counts the answers to health checks, and says which backends pass.
func (sv *services) healthChecks(s feature.Sink) {
	g := sv.api
	if g == nil {
		return
	}
	const name, help = "myelin_health_checks_total", "Answers of backends that were asked for their health."
	passed, failed := g.Counts()
	s.Counter(name, help, float64(passed), prometheus.Labels{"result": "passed"})
	s.Counter(name, help, float64(failed), prometheus.Labels{"result": "failed"})
	ways := map[probe.Via]int{}
	for p := range g.Probes.All(sv.DB.ReadTxn()) {
		if p.Via != "" {
			ways[p.Via]++
		}
		up := 1.0
		if p.Health == serviceapi.Failing {
			up = 0
		}
		s.Gauge("myelin_health_check_up", "Whether a backend passes its health check; 1 also before its first answer.",
			up, prometheus.Labels{"service": p.Service, "backend": p.Backend.String()})
	}
	for via, n := range ways {
		s.Gauge("myelin_health_check_backends",
			"Backends by how the packets of their last check travelled: direct, or as clients' packets by DSR.",
			float64(n), prometheus.Labels{"via": string(via)})
	}
}
