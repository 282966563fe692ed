package serviceapi

import (
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"myelin/endpoint/nettest"
)

// The tests have a network namespace of their own: what they connect to is theirs.
func TestMain(m *testing.M) { os.Exit(nettest.Main(m)) }

// backendHosts are addresses on the loopback device that are none of loopback.
func backendHosts(t *testing.T) []string {
	t.Helper()
	nettest.Root(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"10.9.0.1/32", "fd00:9::1/128"} {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrReplace(lo, a); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"10.9.0.1", "fd00:9::1"}
}
