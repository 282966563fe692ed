package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"myelin/bench/httpload"
	"myelin/bench/results"
	"myelin/l7/control"
	"myelin/lab"
)

//	┌──── node1 ────┐  wire, MTU 1500  ┌──────────── node2 ────────────┐
//	│ agent    eth0 ┼──────────────────┼ eth0       agent        proxy │
//	└──┼────────────┘                  └──┼──────────┼─────────┼───────┘
//	   └─ bench/far            bench/near ┘     bench/open  bench/api (policy)

//go:embed l7.yaml
var l7Objects []byte

const (
	l7Path        = "/api/public/items?id=1"
	l7Connections = 64
	l7Idle        = 2000
	l7Run         = time.Second
	l7Port        = 80
)

// l7Lab is a lab with both servers and a client, which have a processor each: the client on 0, the servers on 1. What
// proxies run on is the kernel's choice, as it is on nodes.
type l7Lab struct {
	lab   *lab.Lab
	stops []func()
	proxy int // the process that relays
	node  *lab.Node
}

// l7Site is a server as a client reaches it.
type l7Site struct {
	name   string
	client *client
	to     netip.AddrPort
	proxy  int // the process that relays; 0: none
	rps    []float64
	cpu    []float64 // µs of the proxy per request
	p99    []float64
}

// L7 measures HTTP requests through an L7 policy: their rate compared with direct requests and with Envoy in the
// proxy's place, latency at half of that rate, and memory. binaries is the folder of myelin, envoy that program.
func L7(ctx context.Context, opts Options, binaries, envoy string) (list []results.Result, err error) {
	dir, err := os.MkdirTemp("", "mybench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var labs []*l7Lab
	defer func() {
		for _, l := range labs {
			err = errors.Join(err, l.down(context.WithoutCancel(ctx)))
		}
	}()
	for _, name := range []string{"m", "e"} {
		l, err := l7Up(ctx, filepath.Join(dir, name), fmt.Sprintf("mybench%d%s", os.Getpid(), name), binaries)
		labs = append(labs, l)
		if err != nil {
			return nil, err
		}
	}
	ours, theirs := labs[0], labs[1]
	if err := theirs.replace(ctx, envoy, dir); err != nil {
		return nil, err
	}
	sites, err := l7Sites(ctx, opts.Family, ours, theirs)
	if err != nil {
		return nil, err
	}
	if err := l7Rates(opts, sites); err != nil {
		return nil, err
	}
	if err := l7Latencies(opts, sites); err != nil {
		return nil, err
	}
	memory, err := l7Memory(sites[1])
	if err != nil {
		return nil, err
	}
	return append(l7Results(sites), memory), nil
}

// l7Up starts a lab, and servers in it.
func l7Up(ctx context.Context, dir, name, binaries string) (*l7Lab, error) {
	l := &l7Lab{}
	manifests := filepath.Join(dir, "l7.yaml")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(manifests, l7Objects, 0o600)); err != nil {
		return l, err
	}
	binary := filepath.Join(binaries, "myelin")
	var err error
	l.lab, err = lab.Up(ctx, lab.Options{
		Images: lab.ImagesNone, Name: name, Manifests: manifests, Dir: filepath.Join(dir, "lab"),
		Binary: binary, InProcess: true, Agent: binary, CNIPlugin: filepath.Join(binaries, "myelin-cni"),
		Values: map[string]any{"ipv6.enabled": true, "hubble.enabled": false, "autoDirectNodeRoutes": true},
		Fabric: lab.FabricWire, Timeout: patience,
	})
	if err != nil {
		return l, err
	}
	l.node = l.lab.Node("node2")
	for _, pod := range []string{"bench/open", "bench/api"} {
		server, err := l.start(ctx, pod, 1)
		if err != nil {
			return l, err
		}
		for _, a := range l.lab.Pod(pod).Addrs() {
			var answer string
			if err := server.ask(&answer, "serve %s", netip.AddrPortFrom(a, l7Port)); err != nil {
				return l, err
			}
		}
	}
	status, err := control.NewClient(l.node.RunDir()).Status(ctx)
	if err != nil {
		return l, fmt.Errorf("find the proxy: %w", err)
	}
	l.proxy = status.PID
	return l, favour(l.proxy)
}

// start starts a client, or a server, in a pod, on one processor.
func (l *l7Lab) start(ctx context.Context, pod string, processor int) (*client, error) {
	c, err := startOn(ctx, l.lab.Pod(pod).NetnsName(), processor)
	if err != nil {
		return nil, fmt.Errorf("start a process in %s: %w", pod, err)
	}
	l.stops = append(l.stops, c.stop)
	return c, favour(c.cmd.Process.Pid)
}

func (l *l7Lab) down(ctx context.Context) error {
	for _, stop := range l.stops {
		stop()
	}
	if l.lab == nil {
		return nil
	}
	return l.lab.Down(ctx)
}

// favour gives the session of a process nearly all of a processor's time that other sessions want too, so that what
// else the machine does disturbs less. Without the kernel's grouping by session it does nothing.
func favour(pid int) error {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte("-20"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("favour process %d: %w", pid, err)
	}
	return nil
}

// l7Sites are direct requests, those through Myelin's proxy, and those through Envoy.
func l7Sites(ctx context.Context, family Family, ours, theirs *l7Lab) ([]*l7Site, error) {
	var clients []*client
	for _, l := range []*l7Lab{ours, theirs} {
		c, err := l.start(ctx, "bench/far", 0)
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	to := func(l *l7Lab, pod string) netip.AddrPort {
		if family == IPv6 {
			return netip.AddrPortFrom(l.lab.Pod(pod).IPv6(), l7Port)
		}
		return netip.AddrPortFrom(l.lab.Pod(pod).IPv4(), l7Port)
	}
	return []*l7Site{
		{name: "direct", client: clients[0], to: to(ours, "bench/open")},
		{name: "myelin", client: clients[0], to: to(ours, "bench/api"), proxy: ours.proxy},
		{name: "envoy", client: clients[1], to: to(theirs, "bench/api"), proxy: theirs.proxy},
	}, nil
}

// l7Rates has all connections send as fast as they are answered.
func l7Rates(opts Options, sites []*l7Site) error {
	for round := range opts.Rounds {
		for _, s := range sites {
			before, err := processTime(s.proxy)
			if err != nil {
				return err
			}
			r, err := s.client.run(httpload.Config{To: s.to, Path: l7Path, Connections: l7Connections, Duration: l7Run})
			if err != nil {
				return fmt.Errorf("round %d of %s: %w", round+1, s.name, err)
			}
			after, err := processTime(s.proxy)
			if err != nil {
				return err
			}
			s.rps = append(s.rps, r.RPS())
			s.cpu = append(s.cpu, float64((after-before).Microseconds())/float64(r.Requests))
			opts.Log.Info("measured", "round", round+1, "path", s.name, "requests/s", int(r.RPS()), "p99 ms", r.P99,
				"proxy's µs", s.cpu[round])
		}
	}
	return nil
}

// l7Latencies has requests begin at half of the rate that Myelin's proxy has reached.
func l7Latencies(opts Options, sites []*l7Site) error {
	rate := int(median(sites[1].rps) / 2)
	for round := range opts.Rounds {
		for _, s := range sites {
			r, err := s.client.run(httpload.Config{To: s.to, Path: l7Path, Connections: l7Connections, Duration: l7Run,
				Rate: rate})
			if err != nil {
				return fmt.Errorf("round %d of %s: %w", round+1, s.name, err)
			}
			s.p99 = append(s.p99, r.P99)
			opts.Log.Info("measured", "round", round+1, "path", s.name, "rate", rate, "requests/s", int(r.RPS()),
				"p99 ms", r.P99)
		}
	}
	return nil
}

// l7Memory is what a connection costs on which a request was answered and no other has come.
func l7Memory(s *l7Site) (results.Result, error) {
	before, err := residentKiB(s.proxy)
	if err != nil {
		return results.Result{}, err
	}
	var n int
	if err := s.client.ask(&n, "idle %s %d", s.to, l7Idle); err != nil {
		return results.Result{}, err
	}
	time.Sleep(time.Second)
	after, err := residentKiB(s.proxy)
	if err != nil {
		return results.Result{}, err
	}
	return results.Result{Name: "l7/kib_per_connection", Value: float64(after-before) / l7Idle, Unit: "KiB"},
		s.client.ask(&n, "close")
}

// processTime is the CPU time of a process, which includes the packets that its system calls deliver.
func processTime(pid int) (time.Duration, error) {
	if pid == 0 {
		return 0, nil
	}
	var t unix.Timespec
	// The clock of another process (clock_getcpuclockid): the complement of its number, and CPUCLOCK_SCHED.
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
