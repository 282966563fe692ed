package doctor

import (
	"strings"

	"myelin/doctor/check"
)

// otherNetworks are known by devices that only they make.
func otherNetworks(m *check.Machine) {
	found := false
	for _, l := range m.Links {
		name := l.Attrs().Name
		for _, o := range []struct{ prefix, who string }{
			{"cilium_", "Cilium"}, {"lxc_health", "Cilium"}, {"cali", "Calico"}, {"vxlan.calico", "Calico"},
			{"flannel.", "Flannel"},
			{"weave", "Weave Net"}, {"antrea-", "Antrea"}, {"ovn-k8s-", "OVN-Kubernetes"},
			{"kube-router", "kube-router"}, {"kube-ipvs0", "kube-proxy (IPVS)"},
		} {
			if !strings.HasPrefix(name, o.prefix) {
				continue
			}
			found = true
			otherNetwork(m, name, o.who)
			break
		}
	}
	if !found {
		m.OK("no device of another cluster network")
	}
}

func otherNetwork(m *check.Machine, device, who string) {
	if strings.HasPrefix(who, "kube-proxy") {
		m.Info(device+" is of "+who,
			"it translates Services for the node, and for pods where bpf.hostLegacyRouting is true", "")
		return
	}
	do := "remove what is left of it when no pod needs it any more"
	if who == "Cilium" {
		do = check.CleanupCilium
	}
	m.Warn(device+" is of "+who, "two networks on a node fight over routes, addresses and hooks", do)
}
