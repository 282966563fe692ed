package bpf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"myelin/test/packet"
)

// ask is what a process in the cgroup does: it talks to an address, and says what came of it.
type ask struct {
	// "tcp", "udp": connected; "datagram": not; "datagrams": not, and twice; "mapped": TCP to an IPv4 address by an
	// IPv6 socket; "marked": TCP by a socket with the mark of health checks; "bind TCP", "bind UDP": to To
	Network string
	To      netip.AddrPort
}

// answer is what it saw: the server, by the port that it names, and the socket's peer name.
type answer struct {
	Server uint16
	Peer   netip.AddrPort
	Error  string
}

const (
	askEnv  = "MYELIN_TEST_ASK"
	askTime = 5 * time.Second
)

// TestSocketChild is no test: TestSockets runs it as a process of its own in a cgroup.
func TestSocketChild(t *testing.T) {
	text := os.Getenv(askEnv)
	if text == "" {
		return
	}
	var a ask
	must(t, json.Unmarshal([]byte(text), &a))
	got, err := a.do()
	if err != nil {
		got.Error = err.Error()
	}
	data, err := json.Marshal(got)
	must(t, err)
	fmt.Printf("answer %s\n", data)
}

func (a ask) do() (got answer, err error) {
	buf, n := make([]byte, 64), 0
	switch a.Network {
	case "datagram", "datagrams":
		n, got.Peer, err = a.datagram(buf)
	case "mapped":
		n, got.Peer, err = a.mapped(buf)
	case "marked":
		d := net.Dialer{Timeout: askTime, Control: func(_, _ string, raw syscall.RawConn) (err error) {
			e := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(probeMark))
			})
			return errors.Join(e, err)
		}}
		n, got.Peer, err = a.connect(&d, "tcp", buf)
	case "bind TCP":
		return got, a.bind(unix.SOCK_STREAM)
	case "bind UDP":
		return got, a.bind(unix.SOCK_DGRAM)
	default:
		n, got.Peer, err = a.connect(&net.Dialer{Timeout: askTime}, a.Network, buf)
	}
	if err != nil {
		return got, err
	}
	got.Peer = netip.AddrPortFrom(got.Peer.Addr().Unmap(), got.Peer.Port())
	_, err = fmt.Sscan(string(buf[:n]), &got.Server)
	return got, err
}

func (a ask) datagram(buf []byte) (n int, from netip.AddrPort, err error) {
	network := "udp6"
	if a.To.Addr().Is4() {
		network = "udp4"
	}
	if a.To.Addr().Is4In6() {
		network = "udp"
	}
	c, err := net.ListenUDP(network, nil)
	if err != nil {
		return 0, from, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(askTime))
	for range map[string]int{"datagram": 1, "datagrams": 2}[a.Network] {
		if _, err = c.WriteToUDPAddrPort([]byte("?"), a.To); err == nil {
			n, from, err = c.ReadFromUDPAddrPort(buf)
		}
	}
	return n, from, err
}

func (a ask) connect(d *net.Dialer, network string, buf []byte) (n int, peer netip.AddrPort, err error) {
	c, err := d.Dial(network, a.To.String())
	if err != nil {
		return 0, peer, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(askTime))
	if _, err := c.Write([]byte("?")); err != nil {
		return 0, peer, err
	}
	n, err = c.Read(buf)
	return n, netip.MustParseAddrPort(c.RemoteAddr().String()), err
}

// mapped does what package net does not, but other languages do: it uses an IPv6 socket for IPv4.
func (a ask) mapped(buf []byte) (n int, peer netip.AddrPort, err error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, peer, err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet6{Addr: a.To.Addr().As16(), Port: int(a.To.Port())}
	if err := unix.Connect(fd, to); err != nil {
		return 0, peer, err
	}
	name, err := unix.Getpeername(fd)
	if err != nil {
		return 0, peer, err
	}
	if in6, ok := name.(*unix.SockaddrInet6); ok {
		peer = netip.AddrPortFrom(netip.AddrFrom16(in6.Addr), uint16(in6.Port))
	}
	if _, err := unix.Write(fd, []byte("?")); err != nil {
		return 0, peer, err
	}
	n, err = unix.Read(fd, buf)
	return n, peer, err
}

// socketWorld is a network namespace with servers on loopback, and a cgroup with the programs.
type socketWorld struct {
	t      *testing.T
	d      *Datapath
	ns     netns.NsHandle
	cgroup string
	bind   bool // the hooks of bind are attached
}

// cgroup2 is where the machine has cgroups of version 2.
func cgroup2(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "cgroup2" {
			return f[1]
		}
	}
	t.Fatal("no cgroup2 is mounted")
	return ""
}

func newSocketWorld(t *testing.T, change func(*socketWorld, *Settings)) *socketWorld {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	name := fmt.Sprintf("myelin-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	w := &socketWorld{t: t, cgroup: filepath.Join(cgroup2(t), name)}
	must(t, os.Mkdir(w.cgroup, 0o755))
	t.Cleanup(func() { os.Remove(w.cgroup) })
	w.makeNamespace()
	dir := t.TempDir()
	must(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	w.load(dir, change)
	for range 2 { // again, as a new agent does
		must(t, w.d.AttachSockets(w.cgroup, w.bind))
	}
	t.Cleanup(func() {
		must(t, w.d.DetachSockets())
		w.d.Close()
	})
	return w
}

func (w *socketWorld) load(dir string, change func(*socketWorld, *Settings)) {
	w.t.Helper()
	must(w.t, rlimit.RemoveMemlock())
	spec, err := LoadDatapath()
	must(w.t, err)
	s := Settings{Ipv4: 1, Ipv6: 1, EventRate: 0}
	if HaveSetRetval() {
		s.SetRetval = 1
	}
	s.Hz, err = ClockRate()
	must(w.t, err)
	if change != nil {
		change(w, &s)
	}
	w.bind = s.BindProtection != 0
	must(w.t, spec.Variables["config"].Set(s))
	onlySockets(spec)
	w.d = &Datapath{options: Options{Dir: dir}}
	must(w.t, w.d.Assign(spec, nil))
}

// in runs fn on a thread in the namespace.
func (w *socketWorld) in(fn func() error) {
	w.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := netns.Get()
	must(w.t, err)
	defer was.Close()
	must(w.t, netns.Set(w.ns))
	err = fn()
	must(w.t, netns.Set(was))
	must(w.t, err)
}

func (w *socketWorld) makeNamespace() {
	w.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := netns.Get()
	must(w.t, err)
	defer was.Close()
	w.ns, err = netns.New()
	must(w.t, err)
	must(w.t, netns.Set(was))
	w.t.Cleanup(func() { w.ns.Close() })
	w.in(func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		for _, a := range []string{"192.168.0.1/32", "fd00::1/128"} {
			addr, bad := netlink.ParseAddr(a)
			if err == nil && bad == nil {
				err = netlink.AddrAdd(lo, addr)
			}
		}
		return err
	})
}

// serve answers with the port that it is on, by TCP and UDP, until the test ends.
func (w *socketWorld) serve(at netip.AddrPort) {
	w.t.Helper()
	w.in(func() error {
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		w.t.Cleanup(func() { l.Close(); u.Close() })
		text := []byte(fmt.Sprint(at.Port()))
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Read(make([]byte, 1))
				c.Write(text)
				c.Close()
			}
		}()
		go func() {
			for buf := make([]byte, 64); ; {
				_, from, err := u.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				u.WriteToUDPAddrPort(text, from)
			}
		}()
		return nil
	})
}

// ask has a process in namespace and cgroup do it.
func (w *socketWorld) ask(a ask) (got answer) {
	w.t.Helper()
	text, err := json.Marshal(a)
	must(w.t, err)
	dir, err := os.Open(w.cgroup)
	must(w.t, err)
	defer dir.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestSocketChild$")
	cmd.Env = append(os.Environ(), askEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	var out []byte
	w.in(func() error {
		out, err = cmd.CombinedOutput()
		return err
	})
	for line := range strings.Lines(string(out)) {
		if data, ok := strings.CutPrefix(line, "answer "); ok {
			must(w.t, json.Unmarshal([]byte(data), &got))
			return got
		}
	}
	w.t.Fatalf("no answer: %s", out)
	return got
}

// outcome is how many sockets ended in a way, on all CPUs.
func (w *socketWorld) outcome(o DatapathSocketOutcome) (n uint64) {
	w.t.Helper()
	var perCPU []uint64
	must(w.t, w.d.SocketOutcomes.Lookup(uint32(o), &perCPU))
	for _, c := range perCPU {
		n += c
	}
	return n
}

// frontend writes a Service with a set of its own, whose backends are at ports of loopback.
func (w *socketWorld) frontend(f packet.Family, at netip.AddrPort, row DatapathFrontend, ports ...uint16) {
	w.t.Helper()
	set := uint32(at.Port())
	if row.Service == 0 {
		row.Service = set
	}
	row.Set[DatapathServiceScopeSCOPE_INTERNAL] = DatapathBackendSet{Id: set, Count: uint32(len(ports))}
	var choice DatapathBackendSlotsRow
	for i, port := range ports {
		choice.Backend[i] = uint32(port)
		if port != gone {
			must(w.t, w.d.Backends.Put(uint32(port), DatapathBackend{Addr: Addr(loopback(f)), Port: Port(port),
				Proto: 6}))
		}
	}
	must(w.t, w.d.BackendSlots.Put(DatapathBackendSlotsKey{Set: set}, choice))
	for _, proto := range []uint8{6, 17} {
		must(w.t, w.d.Frontends.Put(DatapathFrontendKey{Addr: Addr(at.Addr()), Port: Port(at.Port()),
			Proto: proto}, row))
	}
}

const gone = 9 // the number of a backend that has no row

func loopback(f packet.Family) netip.Addr { return pick(f, "127.0.0.1", "::1") }

// pick is one of two by family.
func pick(f packet.Family, four, six string) netip.Addr {
	if f == packet.IPv4 {
		return netip.MustParseAddr(four)
	}
	return netip.MustParseAddr(six)
}
