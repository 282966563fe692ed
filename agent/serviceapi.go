package agent

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/service"
	"myelin/serviceapi"
)

// startServiceAPI has the Services that are programmed by API. It comes before the
// manifests are read, so that Services don't count as complete without.
func (a *Agent) startServiceAPI(context.Context) error {
	if !a.config.Services() {
		return nil
	}
	var err error
	a.serviceAPI, err = serviceapi.New(serviceapi.Params{
		DB: a.db, Tables: a.cluster, Dir: filepath.Join(a.config.Myelin.RunDir, "services"), Log: a.log, Now: time.Now,
	})
	if err != nil {
		return err
	}
	a.group.Add(job.OneShot("service-api", func(ctx context.Context, _ cell.Health) error { return a.serviceAPI.Run(ctx) }))
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
	return s.agent.serviceOff("services")
}

// gateStream does for streams of Services what gate does for requests.
func (s *server) gateStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if isServices(info.FullMethod) {
		if err := s.gateServices(stream.Context()); err != nil {
			return err
		}
	}
	return next(srv, stream)
}

// healthOf is what health checks say of a backend, worst first; empty where
// none asks.
func (a *Agent) healthOf(txn statedb.ReadTxn, backend service.L4Addr) string {
	if a.serviceAPI == nil {
		return ""
	}
	text := ""
	for p := range a.serviceAPI.Probes.List(txn, serviceapi.ProbesByBackend(backend)) {
		if text == "" || p.Health == serviceapi.Failing {
			text = p.Text()
		}
	}
	return text
}

// healthChecks counts what backends answered, and says who passes.
func (m *metrics) healthChecks(s sink) {
	g := m.agent.serviceAPI
	if g == nil {
		return
	}
	const name, help = "myelin_health_checks_total", "Answers of backends that were asked for their health."
	passed, failed := g.Counts()
	s.counter(name, help, float64(passed), prometheus.Labels{"result": "passed"})
	s.counter(name, help, float64(failed), prometheus.Labels{"result": "failed"})
	for p := range g.Probes.All(m.agent.db.ReadTxn()) {
		up := 1.0
		if p.Health == serviceapi.Failing {
			up = 0
		}
		s.gauge("myelin_health_check_up", "Whether a backend passes its health check; 1 also before its first answer.", up,
			prometheus.Labels{"service": p.Service, "backend": p.Backend.String()})
	}
}
