package route

import (
	"strings"

	"github.com/cilium/statedb/reconciler"
)

func (d *derivation) sysctl(why, want string, accept []string, path ...string) {
	d.out.Sysctls = append(d.out.Sysctls, &Sysctl{
		Name: "net/" + strings.Join(path, "/"), Want: want, Accept: accept, Why: why,
		Status: reconciler.StatusPending(),
	})
}

// forSysctls lets the node forward. The order counts: the kernel drops routes
// learnt from router advertisements when IPv6 forwarding begins, unless the
// device was told before to go on listening (accept_ra 2).
func (d *derivation) forSysctls() {
	if d.Config.IPv6 {
		for _, v := range d.Devices {
			if v.Kind == Wire {
				d.sysctl("keep routes from router advertisements while forwarding", "2", []string{"0"},
					"ipv6", "conf", v.Name, "accept_ra")
			}
		}
		d.sysctl("forward IPv6 packets of pods", "1", nil, "ipv6", "conf", "all", "forwarding")
	}
	if !d.Config.IPv4 {
		return
	}
	d.sysctl("forward IPv4 packets of pods", "1", nil, "ipv4", "ip_forward")
	d.sysctl("the larger one of all and the device counts", "0", nil, "ipv4", "conf", "all", "rp_filter")
	for _, v := range d.Devices {
		switch v.Kind {
		case Wire:
			d.sysctl("strict filtering drops replies that come by another way", "2", []string{"0"},
				"ipv4", "conf", v.Name, "rp_filter")
			d.sysctl("forward IPv4 packets of pods", "1", nil, "ipv4", "conf", v.Name, "forwarding")
		case Pod, Tunnel, Encryption:
			d.sysctl("the datapath checks source addresses", "0", nil, "ipv4", "conf", v.Name, "rp_filter")
			d.sysctl("forward IPv4 packets of pods", "1", nil, "ipv4", "conf", v.Name, "forwarding")
		}
		if v.Kind == Pod && d.Config.OwnSource {
			d.sysctl("what pods answer as backends of Services comes from the node's address", "1", nil, "ipv4", "conf",
				v.Name, "accept_local")
		}
	}
}
