package bpf

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// liveTables are packets that BPF_PROG_TEST_RUN can't make, or whose way goes on where it ends: they are sent to
// attached programs.
//
//	linkap -- linka from_pod     vx0 from_wire, to_wire     eth0 from_wire -- eth0p
func liveTables() []table {
	return []table{
		{name: "live", settings: settingsOf(), rows: liveRows()},
		{name: "live, tunnel over IPv4", settings: settingsOf(tunnel4), rows: liveTunnelRows("ip4")},
		{name: "live, tunnel over IPv6", settings: settingsOf(tunnel6), rows: liveTunnelRows("ip6")},
		{name: "live, XDP", settings: settingsOf(servicing, longTimes), rows: liveXDPRows()},
	}
}

func liveRows() []row {
	return []row{
		one("tagged by a pod", "from_pod linka", `eth a > gw vlan 5 | ip a > b | udp 1 > 2`, "DROP_VLAN", ""),
		one("tagged twice by a pod", "from_pod linka", `eth a > gw qinq 7 vlan 5 | ip a > b | udp 1 > 2`,
			"DROP_VLAN", ""),
		one("a priority without a VLAN", "from_pod linka", `eth a > gw vlan 0 pcp 3 | ip a > b | udp 1 > 2`,
			"DROP_VLAN", ""),
		only4(one("arp tagged by a pod", "from_pod linka", `eth a > broadcast vlan 5 | arp who-has gw tell a`,
			"DROP_VLAN", "")),
		one("tagged on the wire", "from_wire eth0", `eth router > node vlan 5 | ip world > a | udp 1 > 2`,
			"FORWARD_STACK", ""),
		one("truncated", "from_pod linka", `eth a > gw | ip a > b | udp 1 > 2 truncate 33`, "DROP_TRUNCATED", ""),
		one("an Ethernet header alone", "from_pod linka", `eth a > gw | ip a > b | udp 1 > 2 truncate 14`,
			"DROP_TRUNCATED", ""),
		one("truncated on the wire", "from_wire eth0", `eth router > node | ip world > a | udp 1 > 2 truncate 33`,
			"DROP_TRUNCATED", ""),
		one("out of the wire, the kernel resolving", "from_pod linka", `eth a > gw | ip a > c ttl 9 | tcp 1 > 2 S`,
			"FORWARD_RESOLVE", `eth node > node2 | ip a > c ttl 8 | tcp 1 > 2 S`),
		one("out of the wire", "from_pod linka", `eth a > gw | ip a > c ttl 9 | tcp 1 > 2 S`, "FORWARD_WIRE",
			`eth node > node2 | ip a > c ttl 8 | tcp 1 > 2 S`),
		one("an answer", "from_pod linka", `eth a > gw | ip a > c ttl 1 | udp 1 > 2`, "DROP_TTL REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp time-exceeded | ip a > c ttl 1 | udp 1 > 2`),
	}
}

// liveTunnelRows have the tunnel's outer packet around: by its bytes the key that the hooks set is seen.
func liveTunnelRows(outer string) []row {
	out := `eth node > node2 | ` + outer + ` node > node2 | udp 1 > 8472 nosum | vxlan vni 1 | `
	in := `eth node2 > node | ` + outer + ` node2 > node | udp 5000 > 8472 nosum | vxlan vni 1 | `
	return []row{
		one("into the tunnel", "from_pod linka", `eth a > gw | ip a > c ttl 9 | tcp 40000 > 80 S`, "FORWARD_TUNNEL",
			out+`eth none > none | ip a > c ttl 8 | tcp 40000 > 80 S`),
		one("an answer through the tunnel", "from_wire vx0", in+`eth none > none | ip c > a ttl 1 | tcp 80 > 40000 A`,
			"DROP_TTL REPLY_ICMP",
			out+`eth none > none | ip gw > c df | icmp time-exceeded | ip c > a ttl 1 | tcp 80 > 40000 A`),
		one("out of the tunnel", "from_wire vx0", in+`eth none > none | ip c > a ttl 9 | tcp 80 > 40000 A`,
			"FORWARD_POD", ""),
		one("out of the tunnel to the host", "from_wire vx0", in+`eth none > none | ip c > gw | tcp 1 > 2 A`,
			"FORWARD_STACK", ""),
	}
}

func TestLive(t *testing.T) {
	for _, noTCX := range []bool{false, true} {
		for _, table := range liveTables() {
			t.Run(fmt.Sprintf("%s, TCX %v", table.name, !noTCX), func(t *testing.T) {
				w := newWorld(t, table.settings, nil)
				w.attach(t, noTCX)
				for _, r := range table.rows {
					t.Run(r.name, func(t *testing.T) {
						packettest.Both(t, func(t *testing.T, f packet.Family) {
							if r.only == 0 || r.only == f {
								defer w.enter(t)()
								w.runLive(t, f, r.steps[0])
							}
						})
					})
				}
			})
		}
	}
}

// attach attaches the programs.
func (w *world) attach(t testing.TB, noTCX bool) {
	t.Helper()
	w.withPins(t, func(dir string) error {
		return w.attachHere(newAttacher(&Datapath{Objects: w.Objects, options: Options{Dir: dir}}, noTCX))
	})
}

// withPins calls attach in the world, with pins in a file system of their own: it lives in a mount namespace, which a
// thread takes with it when the test ends, whatever becomes of us.
func (w *world) withPins(t testing.TB, attach func(dir string) error) {
	t.Helper()
	dir := t.TempDir()
	attached, finish, finished := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		err := w.mountPins(dir)
		if err == nil {
			err = attach(dir)
		}
		attached <- err
		<-finish
	}()
	t.Cleanup(func() { close(finish); <-finished })
	must(t, <-attached)
}

func (w *world) mountPins(dir string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount bpffs: %w", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "links"), 0o700); err != nil {
		return err
	}
	return unix.Setns(w.ns, unix.CLONE_NEWNET)
}

func (w *world) attachHere(a *Attacher) error {
	for _, at := range []struct {
		hook   Hook
		device string
	}{{FromPod, "linka"}, {FromWire, "eth0"}, {FromWire, "vx0"}, {ToWire, "vx0"}} {
		if w.settings.Tunnel == 0 && at.device == "vx0" {
			continue
		}
		if err := a.Attach(at.hook, at.device, w.index[at.device]); err != nil {
			return err
		}
	}
	if w.settings.Services != 0 {
		return w.attachXDP(a)
	}
	return nil
}

// runLive sends the packet to the other end of the step's device, and waits for its counters and for what comes out of
// eth0, or back.
func (w *world) runLive(t testing.TB, f packet.Family, s step) {
	t.Helper()
	_, device, _ := strings.Cut(s.at, " ")
	via, seen := device+"p", "eth0p"
	if device == "vx0" {
		via = "eth0p"
	} else if strings.Contains(s.want, "REPLY") {
		seen = via
	}
	out, in := w.socket(t, seen), w.socket(t, via)
	had := w.counters(t)
	if _, err := unix.Write(in, packettest.Frame(t, f, worldNames(), s.in)); err != nil {
		t.Fatalf("send to %s: %v", via, err)
	}
	if s.out != "" {
		waitForFrame(t, out, packettest.Frame(t, f, worldNames(), s.out))
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		got := w.outcomesSince(t, had)
		if containsAll(got, w.counted(s)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("counted %q, want %q", got, w.counted(s))
		}
		time.Sleep(time.Millisecond)
	}
}

// containsAll: devices send packets of their own as well, which are counted, too.
func containsAll(got, want string) bool {
	for _, o := range strings.Split(want, ", ") {
		if !strings.Contains(got, o) {
			return false
		}
	}
	return true
}

func (w *world) socket(t testing.TB, device string) int {
	t.Helper()
	all := int(be16(unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: w.index[device]}))
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	return fd
}

// waitForFrame reads until a packet is as wanted. A tunnel's source port and the identification of its packets are the
// kernel's choice.
func waitForFrame(t testing.TB, fd int, want []byte) {
	t.Helper()
	var others []string
	buf := make([]byte, 4096)
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			continue
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if packet.Diff(want, buf[:n], worldNames(), "udp.sport", "ip.id", "ip.df", "ip.flow") == "" {
			return
		}
		others = append(others, packet.Format(buf[:n], worldNames()))
	}
	t.Fatalf("no packet is as wanted\nwant %s\ngot  %s", packet.Format(want, worldNames()),
		strings.Join(others, "\n     "))
}
