package proxy

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/endpoint/nettest"
)

// TestTransparent: a connection to a server comes from the client's address and port, which are not of this namespace,
// also if another connection has them, and the listener takes connections to addresses that are not.
func TestTransparent(t *testing.T) {
	nettest.Root(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"198.51.100.0/24", "2001:db8::/64"} {
		_, all, err := net.ParseCIDR(prefix)
		if err != nil {
			t.Fatal(err)
		}
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Table: unix.RT_TABLE_LOCAL,
			Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
		if err := netlink.RouteReplace(route); err != nil {
			t.Fatal(err)
		}
	}
	l, err := listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	for _, addrs := range [][3]string{{"198.51.100.7", "198.51.100.1", "198.51.100.2"},
		{"2001:db8::7", "2001:db8::1", "2001:db8::2"}} {
		client := netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 1023)
		for _, addr := range addrs[1:] { // both from the same port
			server := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
			conn, err := dial(t.Context(), client, server)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer accepted.Close()
			if from, to := ends(accepted); from != client || to != server {
				t.Errorf("a connection from %s to %s, want %s and %s", from, to, client, server)
			}
			go func() { _, _ = io.WriteString(conn, "x") }() // the read fails if this does
			if _, err := io.ReadFull(accepted, make([]byte, 1)); err != nil {
				t.Error(err)
			}
		}
	}
	if n := queueCount(1); n != 1 || queueCount(6) != 3 || queueCount(64) != maxQueues {
		t.Errorf("%d queues for one CPU", n)
	}
}
