package drop

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"myelin/bpf"
)

// Counter is how often an outcome was taken at a hook, since the datapath was
// first loaded: the pinned counters go on over restarts of the agent.
type Counter struct {
	Hook    bpf.Hook
	Outcome Outcome
	Packets uint64
	Bytes   uint64 // from the Ethernet header on
}

// Counters are read from the map "cpus".
type Counters struct {
	Cpus *ebpf.Map
}

// perCPU reads what each possible CPU has.
func (c Counters) perCPU() ([]bpf.DatapathCpu, error) {
	var cpus []bpf.DatapathCpu
	if err := c.Cpus.Lookup(uint32(0), &cpus); err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	return cpus, nil
}

// Read sums over CPUs and returns what is not zero, in the order of hooks and
// of drop.h. CPUs are read one after the other while packets pass, so that
// counters of one reading may differ by packets under way.
func (c Counters) Read() ([]Counter, error) {
	cpus, err := c.perCPU()
	if err != nil {
		return nil, err
	}
	names := NewNames()
	var list []Counter
	for hook, name := range Hooks() {
		for outcome := range len(cpus[0].Counters[hook]) {
			var packets, bytes uint64
			for i := range cpus {
				packets += cpus[i].Counters[hook][outcome].Packets
				bytes += cpus[i].Counters[hook][outcome].Bytes
			}
			if packets > 0 {
				list = append(list, Counter{name, names.Outcome(uint8(outcome)), packets, bytes})
			}
		}
	}
	return list, nil
}

// LostEvents is how many events the kernel did not send: over the rate, or the
// ring was full, for example because it was not read.
func (c Counters) LostEvents() (uint64, error) {
	cpus, err := c.perCPU()
	if err != nil {
		return 0, err
	}
	var lost uint64
	for i := range cpus {
		lost += cpus[i].DropBudget.Lost + cpus[i].TraceBudget.Lost
	}
	return lost, nil
}

// UncountedPackets is how many packets of aggregated flows no event counts.
func (c Counters) UncountedPackets() (uint64, error) {
	cpus, err := c.perCPU()
	if err != nil {
		return 0, err
	}
	var packets uint64
	for i := range cpus {
		packets += cpus[i].TraceUncounted
	}
	return packets, nil
}

// verdict is "drop", "reply" or "forward".
func (o Outcome) verdict() string {
	switch {
	case o.IsDrop():
		return "drop"
	case strings.HasPrefix(o.Name, "REPLY_"):
		return "reply"
	}
	return "forward"
}

// Row is a Counter as tables show it.
type Row struct {
	Hook    bpf.Hook `json:"hook"`
	Verdict string   `json:"verdict"`
	Name    string   `json:"name"`
	Reason  string   `json:"reason"`
	Packets uint64   `json:"packets"`
	Bytes   uint64   `json:"bytes"`
	What    string   `json:"what"`
	Do      string   `json:"do,omitempty"`
}

// Row returns the counter's row.
func (c Counter) Row() *Row {
	o := c.Outcome
	return &Row{c.Hook, o.verdict(), o.Name, o.Text(), c.Packets, c.Bytes, o.What, o.Do}
}

// TableHeader names the columns of TableRow.
func (*Row) TableHeader() []string {
	return []string{"Hook", "Verdict", "Reason", "Packets", "Bytes", "Explanation"}
}

// TableRow is the row as text.
func (r *Row) TableRow() []string {
	text := r.What
	if r.Do != "" {
		text += " " + r.Do
	}
	return []string{string(r.Hook), r.Verdict, r.Reason, strconv.FormatUint(r.Packets, 10),
		strconv.FormatUint(r.Bytes, 10), text}
}
