package bandwidth

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// classes are the QoS classes of Cilium, and priorities of packets that fq's bands have from 6.7 on: the default
// priomap of the kernel is 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1, and bands get 9:3:1 of a busy device.
func classes() map[string]uint8 {
	return map[string]uint8{"guaranteed": 6, "burstable": 8, "best-effort": 5}
}

// maxPriority is TC_PRIO_MAX. Larger ones could name the class of a qdisc that an administrator has configured.
const maxPriority = 15

// parsePriority returns the annotation's value as Myelin writes it: a class, or the number of a priority.
func parsePriority(text string) (string, error) {
	plain := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "") }
	for name := range classes() {
		if plain(text) == plain(name) {
			return name, nil
		}
	}
	number, err := strconv.ParseUint(text, 10, 8)
	if err != nil || number > maxPriority {
		return "", fmt.Errorf("%q is no class (guaranteed, burstable, best-effort) and no priority in 0..%d", text,
			maxPriority)
	}
	return strconv.FormatUint(number, 10), nil
}

// mark is a priority as the datapath has it, 0: packets get none.
func mark(priority string) uint32 {
	if value, ok := classes()[priority]; ok {
		return uint32(value) + 1
	}
	value, err := strconv.ParseUint(priority, 10, 8)
	if err != nil {
		return 0
	}
	return uint32(value) + 1
}

// readBands reports whether fq qdiscs of a device have bands.
func (o *qdiscOps) readBands(device int) (found bool, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(device)})
	var list [][]byte
	err = complete(func() error {
		return o.kernel.Do(func() (err error) {
			list, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
			return err
		})
	})
	if err != nil {
		return false, err
	}
	for _, one := range list {
		msg := nl.DeserializeTcMsg(one)
		attrs, err := nl.ParseRouteAttrAsMap(one[msg.Len():])
		if err != nil {
			return false, err
		}
		kind, options := attrs[nl.TCA_KIND], attrs[nl.TCA_OPTIONS]
		if int(msg.Ifindex) != device || strings.TrimRight(string(kind.Value), "\x00") != "fq" {
			continue
		}
		values, err := nl.ParseRouteAttr(options.Value)
		if err != nil {
			return false, err
		}
		const priomap = nl.TCA_FQ_HORIZON_DROP + 1
		for _, v := range values {
			found = found || v.Attr.Type&^unix.NLA_F_NESTED == priomap
		}
	}
	return found, nil
}

// priorityProblems are why priorities of pods mean nothing, if a pod has one.
func (f *Feature) priorityProblems(txn statedb.ReadTxn, limits []*Limit) []string {
	if !slices.ContainsFunc(limits, func(l *Limit) bool { return l.Priority != "" }) {
		return nil
	}
	encryption := &f.Config.Encryption
	return lostPriorities(f.Config.BPF.HostLegacyRouting, encryption.Enabled && !encryption.UsesIPsec(),
		statedb.Collect(f.manager.qdiscs.All(txn)))
}

func lostPriorities(legacy, wireGuard bool, qdiscs []*Qdisc) (problems []string) {
	if legacy {
		problems = append(problems, "IPv4 packets lose them where the kernel routes (bpf.hostLegacyRouting)")
	}
	if wireGuard {
		problems = append(problems, "packets lose them where WireGuard encrypts")
	}
	for _, q := range qdiscs {
		if q.Wire && q.Found != "" && !q.Bands {
			problems = append(problems, fmt.Sprintf("%s has no fq with bands (kernel 6.7)", q.Device))
		}
	}
	return problems
}
