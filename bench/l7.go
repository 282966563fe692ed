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
	l7Run         = 500 * time.Millisecond
	l7Pause       = 250 * time.Millisecond // in which the rest of the machine has its turn
	l7Port        = 80
)

// l7Lab is a lab with both servers and a client, which have a processor each: the client on 0, the servers on 1. What
// proxies run on is the kernel's choice, as it is on nodes.
type l7Lab struct {
	lab     *lab.Lab
	stops   []func()
	proxy   int // the process that relays
	servers map[string]int
	node    *lab.Node
}

// l7Site is a server as a client reaches it.
type l7Site struct {
	name   string
	client *client
	netns  string // the client's
	to     netip.AddrPort
	proxy  int   // the process that relays; 0: none
	ends   []int // processes of the client and the server
	rps    []float64
	// cpu is the proxy's CPU time per request, and all that with the client and the server, in µs.
	cpu, all []float64
	p99      []float64
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
	for _, name := range []string{"m", "e", "h"} {
		l, err := l7Up(ctx, filepath.Join(dir, name), fmt.Sprintf("mybench%d%s", os.Getpid(), name), binaries,
			name == "h")
		labs = append(labs, l)
		if err != nil {
			return nil, err
		}
	}
	if err := labs[1].replace(ctx, envoy, dir); err != nil {
		return nil, err
	}
	sites, err := l7Sites(ctx, opts.Family, labs)
	if err != nil {
		return nil, err
	}
	for _, s := range sites {
		if err := s.check(); err != nil {
			return nil, err
		}
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
	list = append(l7Results(sites), memory)
	for i := range list {
		list[i].Name += opts.Family.suffix()
	}
	return list, nil
}

// l7Up starts a lab, and servers in it. hubble: requests are recorded.
func l7Up(ctx context.Context, dir, name, binaries string, hubble bool) (*l7Lab, error) {
	l := &l7Lab{servers: map[string]int{}}
	manifests := filepath.Join(dir, "l7.yaml")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(manifests, l7Objects, 0o600)); err != nil {
		return l, err
	}
	binary := filepath.Join(binaries, "myelin")
	var err error
	l.lab, err = lab.Up(ctx, lab.Options{
		Images: lab.ImagesNone, Name: name, Manifests: manifests, Dir: filepath.Join(dir, "lab"),
		Binary: binary, InProcess: true, Agent: binary, CNIPlugin: filepath.Join(binaries, "myelin-cni"),
		Values: map[string]any{"ipv6.enabled": true, "hubble.enabled": hubble, "autoDirectNodeRoutes": true},
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
		l.servers[pod] = server.cmd.Process.Pid
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

// favour runs the threads of a process before all else that the machine does, so that what that is shows less. All
// processes that are compared are equal among each other.
func favour(pid int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		thread := 0
		if _, err := fmt.Sscan(t.Name(), &thread); err != nil {
			return err
		}
		// New threads inherit it.
		err := unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO,
			Priority: 1}, 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("run process %d before others: %w", pid, err)
		}
	}
	return nil
}

// l7Sites are direct requests, those through Myelin's proxy, through Envoy, and through Myelin's with Hubble.
func l7Sites(ctx context.Context, family Family, labs []*l7Lab) ([]*l7Site, error) {
	var sites []*l7Site
	add := func(name string, l *l7Lab, c *client, pod string, proxy int) {
		to := l.lab.Pod(pod).IPv4()
		if family == IPv6 {
			to = l.lab.Pod(pod).IPv6()
		}
		sites = append(sites, &l7Site{name: name, client: c, netns: l.lab.Pod("bench/far").NetnsName(),
			to: netip.AddrPortFrom(to, l7Port), proxy: proxy, ends: []int{c.cmd.Process.Pid, l.servers[pod]}})
	}
	for i, l := range labs {
		c, err := l.start(ctx, "bench/far", 0)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			add("direct", l, c, "bench/open", 0)
		}
		add([]string{"myelin", "envoy", "myelin-hubble"}[i], l, c, "bench/api", l.proxy)
	}
	return sites, nil
}

// l7Rates has all connections send as fast as they are answered.
func l7Rates(opts Options, sites []*l7Site) error {
	for round := range opts.Rounds {
		for _, s := range sites {
			before, err := s.times()
			if err != nil {
				return err
			}
			r, err := s.run(0)
			if err != nil {
				return fmt.Errorf("round %d of %s: %w", round+1, s.name, err)
			}
			after, err := s.times()
			if err != nil {
				return err
			}
			s.rps = append(s.rps, r.RPS())
			s.cpu = append(s.cpu, (after[0]-before[0])/float64(r.Requests))
			s.all = append(s.all, (after[1]-before[1])/float64(r.Requests))
			opts.Log.Info("measured", "round", round+1, "path", s.name, "requests/s", int(r.RPS()), "p99 ms", r.P99,
				"proxy's µs", s.cpu[round], "µs", s.all[round])
		}
	}
	return nil
}

// run makes requests, at a rate or, if that is 0, as fast as they are answered.
func (s *l7Site) run(rate int) (httpload.Report, error) {
	time.Sleep(l7Pause)
	return s.client.run(httpload.Config{To: s.to, Path: l7Path, Connections: l7Connections, Duration: l7Run,
		Rate: rate})
}

// times are the CPU time of the proxy, and that of all processes, in µs.
func (s *l7Site) times() (times [2]float64, err error) {
	for i, pid := range append([]int{s.proxy}, s.ends...) {
		t, err := processTime(pid)
		if err != nil {
			return times, err
		}
		if i == 0 {
			times[0] = float64(t.Microseconds())
		}
		times[1] += float64(t.Microseconds())
	}
	return times, nil
}

// l7Latencies has requests begin at half of the rate that Myelin's proxy has reached.
func l7Latencies(opts Options, sites []*l7Site) error {
	rate := int(median(sites[1].rps) / 2)
	for round := range opts.Rounds {
		for _, s := range sites {
			r, err := s.run(rate)
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
