package tune

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"myelin/endpoint/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Main(m)) }

// The kernel's own veth devices have offloads, no rings, and a largest MTU.
func TestCards(t *testing.T) {
	nettest.Root(t)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "card"}, PeerName: "far"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(veth) })
	if got, err := (Cards{}).Read("card lro"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("lro, which veth devices do not have, is %q: %v", got, err)
	}
	for _, name := range []string{"gso", "gro", "tso", "tx"} {
		for _, value := range []string{"off", "on", "off"} {
			if err := (Cards{}).Write("card "+name, value); err != nil {
				t.Fatal(err)
			}
			if got, err := (Cards{}).Read("card " + name); err != nil || got != value {
				t.Errorf("%s is %q, want %q: %v", name, got, value, err)
			}
		}
	}
	if got, err := (Cards{}).Read("card mtu-max"); err != nil || got != "65535" {
		t.Errorf("largest MTU %q: %v", got, err)
	}
	if got, err := (Cards{}).Read("card qdisc"); err == nil && got != "noqueue" {
		t.Errorf("qdisc %q", got)
	}
	for _, key := range []string{"card rx-ring", "card nothing", "absent gro"} {
		if got, err := (Cards{}).Read(key); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is %q: %v", key, got, err)
		}
	}
	if err := (Cards{}).Write("card rx-ring-max", "1"); err == nil {
		t.Error("what can't be written was written")
	}
}
