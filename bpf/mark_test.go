package bpf

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestMarkEndsAtTheNamespace: a pod with CAP_NET_ADMIN can mark its packets, but the mark ends where they leave its
// namespace. So only the host's own processes can have to_wire look at their packets as health checks.
//
//	pod0 192.0.2.2 ── host0 192.0.2.1
func TestMarkEndsAtTheNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	inNewNamespace(t, func() {
		host := openNamespace(t)
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "host0"}, PeerName: "pod0"}))
		pod0, err := netlink.LinkByName("pod0")
		must(t, err)
		addressed(t, "host0", "192.0.2.1/24")
		atHost := []int{capture(t, "host0", false), capture(t, "host0", true)}
		var atPod int
		inNewNamespace(t, func() {
			pod := openNamespace(t)
			must(t, unix.Setns(host, unix.CLONE_NEWNET))
			must(t, netlink.LinkSetNsFd(pod0, pod))
			must(t, unix.Setns(pod, unix.CLONE_NEWNET))
			addressed(t, "pod0", "192.0.2.2/24")
			atPod = capture(t, "pod0", true)
			sent := false
			for i := 0; i < 20 && !sent; i++ { // until the link has its carrier, and the host has answered ARP
				sendMarked(t)
				sent = captured(t, atPod)
			}
			if !sent {
				t.Error("the packet has no mark where it is sent")
			}
		})
		if !captured(t, atHost[0]) {
			t.Error("the packet does not arrive without a mark")
		}
		if captured(t, atHost[1]) {
			t.Error("the packet arrives with its mark")
		}
	})
}

func addressed(t *testing.T, name, address string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	a, err := netlink.ParseAddr(address)
	must(t, err)
	must(t, netlink.LinkSetUp(l))
	must(t, netlink.AddrAdd(l, a))
}

// capture opens a socket that gets the IPv4 packets of a device with the mark, or those without one.
func capture(t *testing.T, device string, marked bool) int {
	t.Helper()
	l, err := netlink.LinkByName(device)
	must(t, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	const protocol, mark = 0xfffff000, 0xfffff000 + 20 // SKF_AD_OFF + SKF_AD_PROTOCOL, SKF_AD_MARK
	want := uint32(0)
	if marked {
		want = probeMark
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: protocol},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IP, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: mark},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: want, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	must(t, unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}))
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		&unix.Timeval{Usec: int64(300 * time.Millisecond / time.Microsecond)}))
	must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: be16(unix.ETH_P_ALL), Ifindex: l.Attrs().Index}))
	return fd
}

func captured(t *testing.T, fd int) bool {
	t.Helper()
	n, _, err := unix.Recvfrom(fd, make([]byte, 2048), 0)
	if err != nil && err != unix.EAGAIN {
		t.Fatal(err)
	}
	return err == nil && n > 0
}

// sendMarked sends a datagram to the host.
func sendMarked(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(probeMark)))
	to := &unix.SockaddrInet4{Port: 9}
	copy(to.Addr[:], net.IPv4(192, 0, 2, 1).To4())
	must(t, unix.Sendto(fd, []byte("x"), 0, to))
}
