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

	"myelin/internal/daemon"
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
	// handoverTime is how long a proxy still accepts the connections that are redirected to it when another one starts,
	// which reads what is known of names first.
	handoverTime = 10 * time.Second
	// drainTime is how long a proxy serves its connections after another one has started, and endTime after it was told
	// to end.
	drainTime = time.Hour
	endTime   = 2 * time.Second
	// lastTime is how long it serves them still when it was told to end meanwhile, outside of pods: longer than
	// connections last that have no request.
	lastTime = 45 * time.Second
)

// Params are what a proxy works with.
type Params struct {
	RunDir string // of the agent
	BPFDir string // of the datapath's pins
	Queues []*os.File
	Log    *slog.Logger
	// Ending is done when the proxy is to end: at once, with connections that last, or when those have ended that it
	// serves for one that has taken over. Then it waits for them up to lastTime; in a pod, until Kubernetes kills it.
	Ending context.Context
	// Version and Pod are shown in the status.
	Version, Pod string
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

	announced   *net.UnixListener // by which a proxy that drains is found
	configuring sync.Mutex
	loaded      os.FileInfo   // of the configuration that refresh has loaded
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
	proxy.records.base = uint64(proxy.started.UnixNano())
	proxy.http.Store(httpproxy.New(config.HTTP{}, []string{httpproxy.TraceHeader}, time.Now))
	// While a thread waits in a system call, as event loops do, the runtime looks for another use of its P, at once if
	// no P is idle: so one more than there are processors is.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	if err := raiseDescriptors(); err != nil {
		p.Log.Warn("There may be too few file descriptors for all connections", "error", err)
	}
	if err := os.MkdirAll(control.Dir(p.RunDir), 0o700); err != nil {
		return fmt.Errorf("make the proxy's directory: %w", err)
	}
	if err := proxy.maps.await(ctx, p.Log); err != nil {
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
	defer p.unannounce()
	if err := control.RemoveStale(p.RunDir); err != nil {
		p.Log.Warn("Sockets of proxies that have ended are left", "error", err)
	}
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
	case <-p.Ending.Done():
		p.finish(ctx)
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
	c, err := readConfig(p.RunDir)
	if err == nil {
		err = p.Configure(c)
	}
	if err != nil {
		return fmt.Errorf("load the last configuration: %w", err)
	}
	return nil
}

// readConfig reads the last configuration; one that allows nothing if there is none.
func readConfig(runDir string) (*config.Config, error) {
	c := new(config.Config)
	data, err := os.ReadFile(control.ConfigFile(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	return c, json.Unmarshal(data, c)
}

// serveControl opens both sockets.
func (p *proxy) serveControl(ctx context.Context) error {
	l, err := daemon.Listen(control.Socket(p.RunDir))
	if err != nil {
		return fmt.Errorf("open the control socket: %w", err)
	}
	namespaces, err := daemon.Listen(control.NamespaceSocket(p.RunDir))
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
	if err := p.maps.reopen(); err != nil {
		return err
	}
	if err := p.setRules(c); err != nil {
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
	if p.limits != c.HTTP {
		p.limits = c.HTTP
		p.http.Store(p.http.Load().WithLimits(c.HTTP))
	}
	return p.dns.Configure(c)
}

// setRules has connections evaluated by the rules of a configuration.
func (p *proxy) setRules(c *config.Config) error {
	r, err := compile(c)
	if err == nil {
		p.rules.Store(r)
	}
	return err
}

// Status implements control.Handler.
func (p *proxy) Status() control.Status {
	s := control.Status{
		PID: unix.Getpid(), Version: p.Version, Pod: p.Pod, Started: p.started, Device: DeviceName,
		Connections: int(p.open.Load()), Accepted: uint64(p.accepted.Load()), DNS: p.dns.Counters(),
		Requests: map[string]uint64{"allowed": uint64(p.allowed.Load()), "denied": uint64(p.denied.Load())},
		Lost:     p.records.lostCount(), Questions: p.dns.Passing(),
	}
	s.Passed = max(p.maps.passed(), p.passedBefore) - p.passedBefore
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // none comes here when another proxy has taken over
		select {
		case <-p.draining:
			cancel()
		case <-ctx.Done():
		}
	}()
	return p.records.from(ctx, from)
}

// Add implements control.Handler.
func (p *proxy) Add(list []control.Record) {
	for i := range list {
		p.records.add(list[i])
	}
}
