package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"myelin/l7/config"
	"myelin/l7/control"
	"myelin/l7/dns"
	"myelin/l7/httpproxy"
)

const (
	dnsPort     = 53
	protoTCP    = 6
	dialTimeout = 10 * time.Second
	dnsIdle     = 10 * time.Second // RFC 7766, section 6.2.3: a few seconds
	// handoverTime is how long a proxy still accepts the connections that are being set up when another one starts.
	handoverTime = 2 * time.Second
	// drainTime is how long a proxy serves its connections after another one has started.
	drainTime = time.Hour
)

// Params are what a proxy works with.
type Params struct {
	RunDir string // of the agent
	BPFDir string // of the datapath's pins
	Queues []*os.File
	Log    *slog.Logger
	// Version is shown in the status.
	Version string
}

// proxy is the process.
type proxy struct {
	Params
	maps     datapath
	dns      *dns.Engine
	journal  *dns.Journal
	http     atomic.Pointer[httpproxy.Proxy]
	rules    atomic.Pointer[rules]
	limits   config.HTTP
	records  ring
	started  time.Time
	listener *net.TCPListener
	// passedBefore is how many queries had passed in the datapath when this process started.
	passedBefore uint64

	accepted, allowed, denied, open atomic.Int64

	configuring sync.Mutex
	draining    chan struct{} // closed by Drain
	drain       sync.Once
	readers     sync.WaitGroup // of DNS messages
	readUntil   *os.File       // its end means that they are to stop; closed with the process
	stopReading *os.File       // the other end
	stopDNS     context.CancelFunc
	dnsStopped  chan struct{} // closed when no DNS message is read any more and the journal is complete
}

// Run serves until the context ends, or until another proxy has taken over and all connections have ended.
func Run(ctx context.Context, p Params) error {
	proxy := &proxy{Params: p, started: time.Now(), draining: make(chan struct{}), dnsStopped: make(chan struct{})}
	proxy.maps.dir = p.BPFDir
	// While a thread waits in a system call, as event loops do, the runtime looks for another use of its P, at once if
	// no P is idle: so one more than there are processors is.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	if err := raiseDescriptors(); err != nil {
		p.Log.Warn("There may be too few file descriptors for all connections", "error", err)
	}
	if err := os.MkdirAll(control.Dir(p.RunDir), 0o700); err != nil {
		return fmt.Errorf("make the proxy's directory: %w", err)
	}
	if err := proxy.maps.reopen(); err != nil {
		return err
	}
	before := control.NewClient(p.RunDir)
	_, err := before.Status(ctx)
	running := err == nil
	if running { // it stops reading DNS messages, and completes the journal
		if err := before.Drain(ctx); err != nil {
			return fmt.Errorf("take over from the proxy that runs: %w", err)
		}
	}
	return proxy.run(ctx)
}

func (p *proxy) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := p.startDNS(ctx); err != nil {
		return err
	}
	if err := p.restore(); err != nil {
		return err
	}
	var err error
	if p.listener, err = listen(ctx); err != nil {
		return err
	}
	defer p.listener.Close()
	if err := p.serveControl(ctx); err != nil {
		return err
	}
	p.readDNS()
	if err := p.register(); err != nil {
		return err
	}
	p.Log.Info("The proxy is ready", "version", p.Version)
	go p.accept(ctx)
	select {
	case <-ctx.Done():
	case <-p.draining:
		p.waitConnections(ctx)
	}
	p.endDNS()
	return nil
}

// register makes the datapath send new connections here.
func (p *proxy) register() error {
	raw, err := p.listener.SyscallConn()
	if err != nil {
		return err
	}
	var bad error
	err = raw.Control(func(fd uintptr) { bad = p.maps.listen(fd) })
	return errors.Join(err, bad)
}

// restore loads the last configuration. Without one, the proxy refuses connections until the agent sends one.
func (p *proxy) restore() error {
	data, err := os.ReadFile(control.ConfigFile(p.RunDir))
	if errors.Is(err, fs.ErrNotExist) {
		return p.Configure(&config.Config{})
	}
	c := new(config.Config)
	if err == nil {
		err = json.Unmarshal(data, c)
	}
	if err == nil {
		err = p.Configure(c)
	}
	if err != nil {
		return fmt.Errorf("load the last configuration: %w", err)
	}
	return nil
}

// serveControl opens both sockets.
func (p *proxy) serveControl(ctx context.Context) error {
	l, err := control.Listen(control.Socket(p.RunDir))
	if err != nil {
		return fmt.Errorf("open the control socket: %w", err)
	}
	namespaces, err := control.Listen(control.NamespaceSocket(p.RunDir))
	if err != nil {
		return errors.Join(fmt.Errorf("open the socket of the network namespace: %w", err), l.Close())
	}
	namespace, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return errors.Join(err, l.Close(), namespaces.Close())
	}
	go control.ServeNamespace(namespaces, namespace)
	context.AfterFunc(ctx, func() { namespaces.Close() })
	go func() {
		if err := control.Serve(ctx, l, p); err != nil {
			p.Log.Error("The control socket failed", "error", err)
		}
	}()
	return nil
}

// Configure implements control.Handler.
func (p *proxy) Configure(c *config.Config) error {
	p.configuring.Lock()
	defer p.configuring.Unlock()
	r, err := compile(c)
	if err != nil {
		return err
	}
	if err := p.maps.reopen(); err != nil {
		return err
	}
	if p.listener != nil {
		select {
		case <-p.draining:
		default:
			if err := p.register(); err != nil {
				return err
			}
		}
	}
	p.rules.Store(r)
	if p.http.Load() == nil || p.limits != c.HTTP {
		p.limits = c.HTTP
		p.http.Store(httpproxy.New(c.HTTP, []string{httpproxy.TraceHeader}, time.Now))
	}
	return p.dns.Configure(c)
}

// Drain implements control.Handler.
func (p *proxy) Drain() {
	p.drain.Do(func() {
		p.Log.Info("Another proxy takes over")
		p.endDNS()
		close(p.draining)
	})
	<-p.dnsStopped
}

// waitConnections closes the listener when the last connections that were redirected here are accepted, and waits for
// all connections to end.
func (p *proxy) waitConnections(ctx context.Context) {
	deadline := time.After(drainTime)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	closing := time.After(handoverTime)
	for {
		select {
		case <-ctx.Done():
			return
		case <-deadline:
			p.Log.Warn("Connections end with the proxy that served them", "connections", p.open.Load())
			return
		case <-closing:
			closing = nil
			p.listener.Close()
		case <-tick.C:
			if closing == nil && p.open.Load() == 0 {
				return
			}
		}
	}
}

// Status implements control.Handler.
func (p *proxy) Status() control.Status {
	s := control.Status{
		PID: unix.Getpid(), Version: p.Version, Started: p.started, Device: DeviceName,
		Connections: int(p.open.Load()), Accepted: uint64(p.accepted.Load()), DNS: p.dns.Counters(),
		Requests: map[string]uint64{"allowed": uint64(p.allowed.Load()), "denied": uint64(p.denied.Load())},
		Lost:     p.records.lostCount(), Questions: p.dns.Passing(),
	}
	passed, err := p.maps.passed()
	if err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	s.Passed = max(passed, p.passedBefore) - p.passedBefore
	for _, row := range p.dns.Names() {
		s.Names++
		s.Addresses += len(row.Addresses)
	}
	return s
}

// Names implements control.Handler.
func (p *proxy) Names() []dns.Row { return p.dns.Names() }

// Records implements control.Handler.
func (p *proxy) Records(ctx context.Context, from uint64) control.Records {
	return p.records.from(ctx, from)
}
