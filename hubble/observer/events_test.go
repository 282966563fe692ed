package observer

import (
	"fmt"
	"net/netip"
	"testing"

	"myelin/policy/identity"
)

// TestAddressEvent: an address is reported when its identity changes, with the former one, and when it is gone.
func TestAddressEvent(t *testing.T) {
	address, old := netip.MustParseAddr("10.0.1.2"), map[netip.Addr]uint32{}
	const update = `IPCACHE_UPSERTED 10.0.1.2/32 `
	for i, step := range []struct {
		id      uint32
		owner   string
		deleted bool
		want    string
	}{
		{5, "pod demo/web", false, update + "5 was 0 demo web"},
		{5, "pod demo/web", false, ""},
		{65536, "pod demo/web", false, update + "65536 was 5 demo web"},
		{65536, "pod demo/web", true, "IPCACHE_DELETED 10.0.1.2/32 65536 was 0 demo web"},
		{6, "node node2", false, update + "6 was 0  "},
	} {
		got := ""
		row := &identity.Address{Addr: address, ID: step.id, Owner: step.owner}
		if e := addressEvent(old, row, step.deleted); e != nil {
			n := e.GetIpcacheUpdate()
			got = fmt.Sprintf("%s %s %d was %d %s %s", e.GetType(), n.GetCidr(), n.GetIdentity(),
				n.GetOldIdentity().GetValue(), n.GetNamespace(), n.GetPodName())
		}
		if got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
	}
}
