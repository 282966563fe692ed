package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"myelin/bpf"
	"myelin/cni"
	"myelin/hooks"
	"myelin/tunnel"
)

// programs looks for programs of others where ours hang.
func (x *examination) programs() {
	foreign, ours, looked := 0, 0, 0
	for _, l := range x.links {
		if !isPod(l) && !x.isWire(l) && l.Attrs().Name != tunnel.DeviceName {
			continue
		}
		list, err := hooks.List(x.netlink, l)
		if err != nil {
			x.warn("programs on devices are not known: "+err.Error(), "", "run as root")
			return
		}
		looked++
		for _, p := range list {
			if slices.Contains([]bpf.Hook{bpf.FromPod, bpf.ToPod, bpf.FromWire, bpf.ToWire}, bpf.Hook(p.Name)) {
				ours++
				continue
			}
			foreign++
			x.foreign(l.Attrs().Name, p)
		}
	}
	if foreign == 0 {
		x.ok("no foreign program on %d wires and pod links, %d of ours", looked, ours)
	}
}

func (x *examination) foreign(device string, p hooks.Program) {
	why := "it may take, change or drop packets that the datapath should see"
	do := "find out whose it is: bpftool net show dev " + device
	if p.ID != 0 {
		do += fmt.Sprintf("; bpftool prog show id %d", p.ID)
	}
	if strings.HasPrefix(p.Where, "clsact") && x.attachesByTCX() {
		why = "it runs after TCX: it sees only what the datapath lets through to the stack"
	}
	x.warn("another program on "+device+": "+p.String(), why, do)
}

// attachesByTCX asks the agent, or else the kernel.
func (x *examination) attachesByTCX() bool {
	if x.Agent != nil {
		f := x.Agent.Feature("Attach Mode")
		return f != nil && f.Chosen == "TCX"
	}
	return x.Config.BPF.EnableTCX && hooks.TCX() == nil
}

// sockets looks for programs of Cilium that translate Services at the sockets, by maps that its agent keeps no more
// once it has gone.
func (x *examination) sockets() {
	at, err := x.Config.Cgroup(x.Proc)
	if err != nil {
		return // the check of mounts has said so
	}
	cgroup, err := os.Open(at)
	if err != nil {
		return
	}
	defer cgroup.Close()
	list, err := hooks.Sockets(cgroup)
	if err != nil {
		x.warn("programs on control groups are not known: "+err.Error(), "", "run as root")
		return
	}
	list = slices.DeleteFunc(list, func(p hooks.Program) bool { return !strings.HasPrefix(p.Name, "cil_") })
	if len(list) > 0 {
		x.fail(fmt.Sprintf("%d programs of Cilium on %s, such as %s", len(list), at, list[0]),
			"they translate Services as Cilium knew them last, before ours can",
			leaveCilium)
	}
}

// leaveCilium is what to do about its leavings.
const leaveCilium = "myelin cleanup --cilium, when its agent and its pods have ended on this node"

// cni looks for what a container runtime would take instead of our plugin.
func (x *examination) cni() {
	dir := x.Config.CNI.ConfPath
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.warn("CNI configurations can't be listed: "+err.Error(), "", "")
	}
	written := false
	for _, e := range entries {
		name := e.Name()
		switch {
		case name == cni.ConflistName:
			written = true
		case !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)):
		case name < cni.ConflistName:
			x.fail(filepath.Join(dir, name)+" comes before "+cni.ConflistName,
				"the runtime takes the first file by name: pods get another network", "remove it, or rename it")
		default:
			x.info(filepath.Join(dir, name)+" is another network's configuration",
				"it comes into force if ours is removed", "remove it")
		}
	}
	switch {
	case written:
		x.ok("%s is written", filepath.Join(dir, cni.ConflistName))
	case x.Agent != nil:
		x.fail(cni.ConflistName+" is not in "+dir, "the runtime makes no pods with our network",
			"restart the agent, which writes it when it is ready")
	default:
		x.info(cni.ConflistName+" is not in "+dir, "the node is not ready for pods",
			"the agent writes it when it is ready")
	}
	plugin := filepath.Join(x.Config.CNI.BinPath, cni.PluginName)
	switch info, err := os.Stat(plugin); {
	case err != nil:
		x.warn("the plugin is not installed: "+err.Error(), "the runtime can't call it",
			"copy "+cni.PluginName+" to "+x.Config.CNI.BinPath)
	case info.Mode()&0o111 == 0:
		x.fail(plugin+" is not executable", "the runtime can't call it", "chmod +x "+plugin)
	default:
		x.ok("%s is installed", plugin)
	}
}

// otherNetworks are known by devices that only they make.
func (x *examination) otherNetworks() {
	found := false
	for _, l := range x.links {
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
			x.otherNetwork(name, o.who)
			break
		}
		x.portTaken(l)
	}
	if !found {
		x.ok("no device of another cluster network")
	}
}

func (x *examination) otherNetwork(device, who string) {
	if strings.HasPrefix(who, "kube-proxy") {
		x.info(device+" is of "+who,
			"it translates Services for the node, and for pods where bpf.hostLegacyRouting is true", "")
		return
	}
	do := "remove what is left of it when no pod needs it any more"
	if who == "Cilium" {
		do = leaveCilium
	}
	x.warn(device+" is of "+who, "two networks on a node fight over routes, addresses and hooks", do)
}

// portTaken: the kernel lets two VXLAN devices share a port only if they differ
// in what they carry.
func (x *examination) portTaken(l netlink.Link) {
	v, ok := l.(*netlink.Vxlan)
	if !ok || x.Config.RoutingMode != "tunnel" || v.Name == tunnel.DeviceName || v.Port != int(x.Config.TunnelPort) {
		return
	}
	level, why := Warn, "packets of its network number go to it"
	if v.FlowBased {
		level, why = Fail, "the kernel refuses a second device that carries all networks on one port"
	}
	x.add(level, fmt.Sprintf("%s has UDP port %d as well", v.Name, v.Port), why,
		"remove it, or choose another tunnelPort")
}
