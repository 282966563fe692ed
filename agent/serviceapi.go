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

	"myelin/feature"
	"myelin/service"
	"myelin/serviceapi"
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
		Now: time.Now,
	})
	if err != nil {
		return err
	}
	sv.Go("service-api", sv.api.Run)
	return nil
}

// servicesPrefix begins the names of the service Services' methods.
const servicesPrefix = "/myelin.v1.Services/"

func isServices(method string) bool { return strings.HasPrefix(method, servicesPrefix) }

// gateServices lets requests through when all that they need is there.
func (s *server) gateServices(ctx context.Context) error {
	if err := s.agent.progress.wait(ctx, s.stopping); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return s.agent.services.refuse("services")
}

// gateStream does for streams of Services what gate does for requests.
func (s *server) gateStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	next grpc.StreamHandler) error {
	if isServices(info.FullMethod) {
		if err := s.gateServices(stream.Context()); err != nil {
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
			text = p.Text()
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
	for p := range g.Probes.All(sv.DB.ReadTxn()) {
		up := 1.0
		if p.Health == serviceapi.Failing {
			up = 0
		}
		s.Gauge("myelin_health_check_up", "Whether a backend passes its health check; 1 also before its first answer.",
			up, prometheus.Labels{"service": p.Service, "backend": p.Backend.String()})
	}
}
