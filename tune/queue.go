package tune

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cardsOf are the network cards below the wires: what bonds and VLAN devices consist of.
func (l *list) cardsOf() (names []string) {
	var add func(name string, depth int)
	add = func(name string, depth int) {
		lower, _ := filepath.Glob(filepath.Join(l.Root, "/sys/class/net", name, "lower_*"))
		if len(lower) == 0 || depth > 8 {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
			return
		}
		for _, path := range lower {
			add(strings.TrimPrefix(filepath.Base(path), "lower_"), depth+1)
		}
	}
	for _, w := range l.Wires {
		add(w, 0)
	}
	slices.Sort(names)
	return names
}

// balances reports whether irqbalance runs.
func (l *list) balances() bool {
	for _, pid := range l.names("/proc", "") {
		if l.read("/proc/"+pid+"/comm") == "irqbalance" {
			return true
		}
	}
	return false
}

// interrupts spreads those of cards over the CPUs that are near to them.
func (l *list) interrupts() {
	balanced := l.balances()
	if l.profile == Latency && balanced {
		l.manual("irqbalance", "running", "stopped", "systemctl disable --now irqbalance",
			"systemctl enable --now irqbalance",
			text{"it moves interrupts between CPUs while packets arrive", "response times without outliers"})
	}
	for _, card := range l.cardsOf() {
		dir := "/sys/class/net/" + card
		near := parseList(l.read(dir + "/device/local_cpulist"))
		if len(near) == 0 {
			near = l.cpus()
		}
		for i, irq := range l.names(dir+"/device/msi_irqs", "") {
			if len(near) == 0 {
				break
			}
			name, cpu := fmt.Sprintf("interrupt %s of %s", irq, card), near[i%len(near)]
			key := "/proc/irq/" + irq + "/smp_affinity_list"
			t := text{"each queue of a card gets a CPU of its own, near to the card", "queues work at the same time"}
			if balanced {
				l.manual(name, l.read(key), l.read(key), "", "", text{"irqbalance chooses its CPU", "-"})
				continue
			}
			l.want(File, name, key, always(strconv.Itoa(cpu)), t)
		}
	}
}

// flowEntries is the size of the table of RFS, for the whole machine.
const flowEntries = 32768

// queues are RPS, RFS and XPS of cards.
func (l *list) queues() {
	all := l.cpus()
	steered := false
	for _, card := range l.cardsOf() {
		dir := "/sys/class/net/" + card + "/queues/"
		rx, tx := l.names(dir, "rx-"), l.names(dir, "tx-")
		// Software spreads packets where the card has too few queues for that.
		spread := l.profile == Throughput && len(all) > 1 && len(rx) < len(all) && l.hardware(card)
		for _, q := range rx {
			steered = steered || spread
			cpus, flows := []int(nil), "0"
			if spread {
				cpus, flows = all, strconv.Itoa(flowEntries/max(1, len(rx)))
			}
			l.want(File, "RPS of "+card+" "+q, dir+q+"/rps_cpus", wantMask(cpus), text{
				"packets of one queue are spread over CPUs if the card has fewer queues than there are CPUs; " +
					"otherwise this only adds a way between CPUs", "more packets a second on several connections"})
			l.want(File, "RFS of "+card+" "+q, dir+q+"/rps_flow_cnt", always(flows), text{
				"packets of a connection go to the CPU where its process runs", "fewer cache misses"})
		}
		for i, q := range tx {
			if len(tx) < 2 || len(all) == 0 {
				break
			}
			var cpus []int
			for n, c := range all {
				if n%len(tx) == i {
					cpus = append(cpus, c)
				}
			}
			l.want(File, "XPS of "+card+" "+q, dir+q+"/xps_cpus", wantMask(cpus), text{
				"each CPU transmits by its own queue", "CPUs do not wait for each other's locks"})
		}
	}
	want := "0"
	if steered {
		want = strconv.Itoa(flowEntries)
	}
	l.want(File, "flows of RFS", "/proc/sys/net/core/rps_sock_flow_entries", always(want), text{
		"the table of RFS, which needs it", "fewer cache misses where RFS is on; without RFS none"})
}

// hardware reports whether the device is a card, not a veth of a lab.
func (l *list) hardware(card string) bool {
	_, err := os.Stat(filepath.Join(l.Root, "/sys/class/net", card, "device"))
	return err == nil
}
