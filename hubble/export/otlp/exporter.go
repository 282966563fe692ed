// Package otlp sends flows as log records to a collector of OpenTelemetry, by gRPC.
package otlp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	resourcepb "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"myelin/hubble/consumer"
)

// Bounds of an exporter. A batch that a collector refuses for now is tried again for retryFor; the queue fills
// meanwhile.
const (
	queueSize = 8192
	batchSize = 512
	batchWait = time.Second
	timeout   = 10 * time.Second
	retryWait = time.Second
	retryFor  = 30 * time.Second
)

// Params of New.
type Params struct {
	Endpoint string // "host:port"
	Insecure bool   // without TLS; else the certificate is checked by the system's authorities
	Node     string
	Log      *slog.Logger
}

// Exporter is a consumer.Exporter.
type Exporter struct {
	Params
	conn     *grpc.ClientConn
	queue    *consumer.Queue
	progress consumer.Progress
	retry    time.Duration // between attempts
	patience time.Duration // for all attempts
}

// CheckEndpoint wants "host:port".
func CheckEndpoint(endpoint string) error {
	if host, port, err := net.SplitHostPort(endpoint); err != nil || host == "" || port == "" {
		return fmt.Errorf("%q is not HOST:PORT", endpoint)
	}
	return nil
}

// New makes an exporter, which connects and sends while Run runs.
func New(p Params) (*Exporter, error) {
	if err := CheckEndpoint(p.Endpoint); err != nil {
		return nil, err
	}
	security := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	if p.Insecure {
		security = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(p.Endpoint, grpc.WithTransportCredentials(security))
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", p.Endpoint, err)
	}
	return &Exporter{Params: p, conn: conn, queue: consumer.NewQueue(queueSize, nil), retry: retryWait,
		patience: retryFor}, nil
}

// Consume implements consumer.Consumer.
func (e *Exporter) Consume(f *flowpb.Flow) { e.queue.Consume(f) }

// Lost implements consumer.Consumer. Log records have no place for it: it is in the metrics of the agent.
func (e *Exporter) Lost(*flowpb.LostEvent) {}

// State implements consumer.Exporter.
func (e *Exporter) State() consumer.State { return e.progress.State("otlp", e.Endpoint, e.queue) }

// Run sends until ctx ends and each batch that was queued by then has been tried once.
func (e *Exporter) Run(ctx context.Context) {
	e.queue.Run(ctx, batchSize, batchWait, func(items []consumer.Item) { e.batch(ctx, items) })
	if err := e.conn.Close(); err != nil {
		e.Log.Debug("the connection of an exporter is not closed", "exporter", "otlp", "error", err)
	}
}

// batch sends flows, again if the collector asks for it or does not answer.
func (e *Exporter) batch(ctx context.Context, items []consumer.Item) {
	records := make([]*logspb.LogRecord, 0, len(items))
	for _, i := range items {
		records = append(records, logRecord(i.Flow))
	}
	request := e.request(records)
	for begin := time.Now(); ; {
		rejected, err := e.send(request)
		if err == nil {
			e.done(len(records), rejected)
			return
		}
		again := retryable(err) && time.Since(begin)+e.retry < e.patience
		lost := len(records)
		if again {
			lost = 0
		}
		if e.progress.Failed(lost, err) {
			e.Log.Error("flows are not exported", "exporter", "otlp", "again", again, "error", err)
		}
		if !again {
			return
		}
		select {
		case <-time.After(e.retry):
		case <-ctx.Done():
			e.progress.Failed(len(records), err)
			return
		}
	}
}

// done notes what a collector took, and what it did not.
func (e *Exporter) done(records int, rejected int64) {
	lost := int(min(max(rejected, 0), int64(records)))
	if e.progress.Wrote(records - lost) {
		e.Log.Info("flows are exported again", "exporter", "otlp")
	}
	if lost > 0 {
		e.progress.Failed(lost, fmt.Errorf("send to %s: the collector rejects some records", e.Endpoint))
	}
}

// send makes one attempt. Rejected are records that the collector does not take.
func (e *Exporter) send(request *collectorpb.ExportLogsServiceRequest) (rejected int64, err error) {
	// Not of Run's context, which ends before the last batch.
	ctx, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	answer := &collectorpb.ExportLogsServiceResponse{}
	// The messages are "slim": their package has no client, and other names, which are not on the wire.
	const method = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
	if err := e.conn.Invoke(ctx, method, request, answer); err != nil {
		return 0, fmt.Errorf("send to %s: %w", e.Endpoint, err)
	}
	return answer.GetPartialSuccess().GetRejectedLogRecords(), nil
}

// retryable reports whether an error may be retried (OTLP 1.0, "Failures").
func retryable(err error) bool {
	var with interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &with) {
		return false
	}
	switch with.GRPCStatus().Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss,
		codes.ResourceExhausted:
		return true
	}
	return false
}

func (e *Exporter) request(records []*logspb.LogRecord) *collectorpb.ExportLogsServiceRequest {
	var a attributes
	a.text("service.name", "myelin")
	a.text("k8s.node.name", e.Node)
	return &collectorpb.ExportLogsServiceRequest{ResourceLogs: []*logspb.ResourceLogs{{
		Resource: &resourcepb.Resource{Attributes: a},
		ScopeLogs: []*logspb.ScopeLogs{{Scope: &commonpb.InstrumentationScope{Name: "myelin/hubble"},
			LogRecords: records}},
	}}}
}
