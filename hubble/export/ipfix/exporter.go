// Package ipfix sends flows to a collector of IPFIX (RFC 7011) by UDP or TCP.
package ipfix

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"strings"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/hubble/consumer"
)

// Bounds of an exporter.
const (
	queueSize = 8192
	batchSize = 512
	batchWait = 500 * time.Millisecond
	timeout   = 5 * time.Second // of a connection, and of a write
	retryWait = time.Second     // between attempts to connect
)

// Sizes of messages in bytes. What UDP sends fits into the smallest packet that every link of IPv6 carries (RFC 8200
// section 5: 1280 bytes, with 48 of headers), for the path's MTU is not known.
const (
	maxUDP = 1280 - 48
	maxTCP = 16 << 10
)

// MinTemplateInterval is the shortest time between two sendings of templates.
const MinTemplateInterval = time.Second

// Params of New.
type Params struct {
	Collector string // "udp://host:port" or "tcp://host:port"; without a scheme UDP
	// TemplateInterval is how often UDP repeats templates.
	TemplateInterval time.Duration
	Node             string // the observation domain is a hash of it
	Log              *slog.Logger
	Now              func() time.Time
}

// Exporter is a consumer.Exporter.
type Exporter struct {
	Params
	network, address string
	queue            *consumer.Queue
	progress         consumer.Progress

	// Of Run's goroutine.
	conn      net.Conn
	encoder   *encoder
	templated time.Time // when templates were sent last
	tried     time.Time // when a connection was tried last
	lostOnWay uint64    // events that were lost before the exporter
	told      uint64    // lost flows, as far as the collector knows
	refused   error     // why the last attempt to connect failed
	sent      int       // flows that were written to a connection
}

// ParseCollector checks a collector's address, and returns its network and "host:port".
func ParseCollector(collector string) (network, address string, err error) {
	network, address, ok := strings.Cut(collector, "://")
	if !ok {
		network, address = "udp", collector
	}
	if network != "udp" && network != "tcp" {
		return "", "", fmt.Errorf("%q is not udp://HOST:PORT or tcp://HOST:PORT", collector)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return "", "", fmt.Errorf("%q is not udp://HOST:PORT or tcp://HOST:PORT", collector)
	}
	return network, address, nil
}

// New makes an exporter, which sends while Run runs.
func New(p Params) (*Exporter, error) {
	network, address, err := ParseCollector(p.Collector)
	if err != nil {
		return nil, err
	}
	return &Exporter{Params: p, network: network, address: address, queue: consumer.NewQueue(queueSize, nil)}, nil
}

// Consume implements consumer.Consumer.
func (e *Exporter) Consume(f *flowpb.Flow) { e.queue.Consume(f) }

// Lost implements consumer.Consumer.
func (e *Exporter) Lost(l *flowpb.LostEvent) { e.queue.Lost(l) }

// State implements consumer.Exporter.
func (e *Exporter) State() consumer.State {
	return e.progress.State("ipfix", e.network+"://"+e.address, e.queue)
}

// Run sends until ctx ends and what was consumed by then is sent.
func (e *Exporter) Run(ctx context.Context) {
	e.queue.Run(ctx, batchSize, batchWait, e.batch)
	if e.conn != nil {
		e.conn.Close()
	}
}

// batch sends records of flows. Those that are not sent are counted as lost.
func (e *Exporter) batch(items []consumer.Item) {
	var records []record
	for _, i := range items {
		if i.Flow == nil {
			e.lostOnWay += i.Lost.GetNumEventsLost()
		} else if r, ok := newRecord(i.Flow); ok {
			records = append(records, r)
		}
	}
	if err := e.connect(); err != nil {
		e.failed(len(records), err)
		return
	}
	before := e.sent
	if err := e.encode(records); err != nil {
		e.conn.Close()
		e.conn = nil
		e.progress.Wrote(e.sent - before)
		e.failed(len(records)-(e.sent-before), fmt.Errorf("send to %s: %w", e.Collector, err))
		return
	}
	if e.progress.Wrote(len(records)) {
		e.Log.Info("flows are exported again", "exporter", "ipfix")
	}
}

func (e *Exporter) failed(flows int, err error) {
	if e.progress.Failed(flows, err) {
		e.Log.Error("flows are not exported", "exporter", "ipfix", "error", err)
	}
}

// connect begins a transport session, unless there is one. After an attempt that failed the next ones fail at once
// for a while.
func (e *Exporter) connect() error {
	if e.conn != nil {
		return nil
	}
	if wait := e.tried.Add(retryWait).Sub(e.Now()); wait > 0 && wait <= retryWait {
		return e.refused
	}
	e.tried = e.Now()
	conn, err := net.DialTimeout(e.network, e.address, timeout)
	if err != nil {
		e.refused = fmt.Errorf("connect to %s: %w", e.Collector, err)
		return e.refused
	}
	e.refused = fmt.Errorf("connect to %s: the last connection has failed", e.Collector)
	e.conn, e.templated, e.told = conn, time.Time{}, 0
	max := maxUDP
	if e.network == "tcp" {
		max = maxTCP
	}
	e.encoder = newEncoder(max, domain(e.Node), e.Now, e.send)
	return nil
}

// domain is the observation domain of a node: not 0, which stands for the whole process.
func domain(node string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(node))
	return max(h.Sum32(), 1)
}

func (e *Exporter) send(message []byte, flows int) error {
	if err := e.conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := e.conn.Write(message); err != nil {
		return err
	}
	e.sent += flows
	return nil
}

// encode sends templates if they are due, how many flows were lost if that is news, and records.
func (e *Exporter) encode(records []record) error {
	first := e.templated.IsZero()
	repeat := e.network == "udp" && !e.Now().Before(e.templated.Add(e.TemplateInterval))
	if first || repeat {
		if err := e.encoder.templates(); err != nil {
			return err
		}
		e.templated = e.Now()
	}
	if lost := e.lostOnWay + e.State().Lost; lost > e.told || repeat {
		if err := e.encoder.loss(domain(e.Node), lost); err != nil {
			return err
		}
		e.told = lost
	}
	for i := range records {
		if err := e.encoder.data(&records[i]); err != nil {
			return err
		}
	}
	return e.encoder.flush()
}
