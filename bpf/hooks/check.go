package hooks

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"myelin/doctor/check"
)

// Checks are the doctor's checks for programs of others. ours are the names of the
// datapath's programs.
func Checks(ours []string) []check.Check {
	return []check.Check{
		{Area: "programs", Devices: true, Privileged: true, Run: func(m *check.Machine) { programs(m, ours) }},
		{Area: "programs", Privileged: true, Run: sockets},
	}
}

// programs looks for programs of others where ours hang.
func programs(m *check.Machine, ours []string) {
	foreign, own, looked := 0, 0, 0
	for _, l := range m.Hooked {
		list, err := List(m.Netlink, l)
		if err != nil {
			m.Warn("programs on devices are not known: "+err.Error(), "", "run as root")
			return
		}
		looked++
		for _, p := range list {
			if slices.Contains(ours, p.Name) {
				own++
				continue
			}
			foreign++
			addForeign(m, l.Attrs().Name, p)
		}
	}
	if foreign == 0 {
		m.OK("no foreign program on %d wires and pod links, %d of ours", looked, own)
	}
}

func addForeign(m *check.Machine, device string, p Program) {
	why := "it may take, change or drop packets that the datapath should see"
	do := "find out whose it is: bpftool net show dev " + device
	if p.ID != 0 {
		do += fmt.Sprintf("; bpftool prog show id %d", p.ID)
	}
	if strings.HasPrefix(p.Where, "clsact") && m.TCX() {
		why = "it runs after TCX: it sees only what the datapath lets through to the stack"
	}
	m.Warn("another program on "+device+": "+p.String(), why, do)
}

// sockets looks for programs of Cilium that translate Services at the sockets, by maps that its agent keeps no more
// once it has gone.
func sockets(m *check.Machine) {
	at, err := m.Config.Cgroup(m.Proc)
	if err != nil {
		return // the check of mounts has said so
	}
	cgroup, err := os.Open(at)
	if err != nil {
		return
	}
	defer cgroup.Close()
	list, err := Sockets(cgroup)
	if err != nil {
		m.Warn("programs on control groups are not known: "+err.Error(), "", "run as root")
		return
	}
	list = slices.DeleteFunc(list, func(p Program) bool { return !strings.HasPrefix(p.Name, "cil_") })
	if len(list) > 0 {
		m.Fail(fmt.Sprintf("%d programs of Cilium on %s, such as %s", len(list), at, list[0]),
			"they translate Services as Cilium knew them last, before ours can",
			check.CleanupCilium)
	}
}
