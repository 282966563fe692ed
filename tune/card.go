package tune

import (
	"fmt"
	"slices"
	"strconv"
)

// cards are rings, interrupt coalescing and offloads.
func (l *list) cards() {
	for _, card := range l.cardsOf() {
		for _, ring := range []string{"rx-ring", "tx-ring"} {
			most, err := l.Devices.Read(card + " " + ring + "-max")
			if err != nil {
				continue
			}
			l.want(Ethtool, ring+" of "+card, card+" "+ring, l.by(most, ""), text{
				"a burst that does not fit into the ring is lost", "fewer losses; some memory"})
		}
		l.want(Ethtool, "adaptive-rx of "+card, card+" adaptive-rx", l.by("on", "off"), text{
			"the card waits for more packets before it interrupts, by the rate of packets",
			"throughput: fewer interrupts; latency: no waiting"})
		l.want(Ethtool, "rx-usecs of "+card, card+" rx-usecs", l.by("", "0"), text{
			"how long the card waits for more packets before it interrupts, in microseconds",
			"shorter response times; more interrupts"})
		for _, o := range []struct{ name, why string }{
			{"rx", "the card verifies checksums"}, {"tx", "the card computes checksums"},
			{"tso", "the card cuts large packets into segments"}, {"gso", "segments are cut at the last moment"},
			{"gro", "segments that arrive are merged before they pass the stack"},
		} {
			l.want(Ethtool, o.name+" of "+card, card+" "+o.name, always("on"),
				text{o.why, "less CPU time for each byte"})
		}
		l.want(Ethtool, "lro of "+card, card+" lro", always("off"), text{
			"the card merges packets so that they can't be forwarded to pods", "packets to pods are not lost"})
	}
}

// qdisc is the discipline of queues: of new devices, and, by hand, of the cards.
func (l *list) qdisc() {
	for _, card := range l.cardsOf() {
		kind, err := l.Devices.Read(card + " qdisc")
		want := kind
		if slices.Contains([]string{"pfifo_fast", "pfifo", "fq_codel"}, kind) && l.hardware(card) {
			want = "fq"
		}
		if err == nil {
			command := "tc qdisc replace dev " + card + " root "
			l.manual("qdisc of "+card, kind, want, command+want, command+kind, text{
				"fq paces TCP and keeps flows apart", "fewer losses in bursts"})
		}
	}
	l.want(File, "qdisc of new devices", "/proc/sys/net/core/default_qdisc", always("fq"), text{
		"fq paces TCP and keeps flows apart; devices that exist keep theirs", "fewer losses in bursts"})
}

// mtu is manual: all devices of the path have to take such packets.
func (l *list) mtu() {
	const jumbo = 9000
	for _, w := range l.Wires {
		current := l.read("/sys/class/net/" + w + "/mtu")
		n, err := strconv.Atoi(current)
		if err != nil {
			continue
		}
		most, err := l.Devices.Read(w + " mtu-max")
		limit, err2 := strconv.Atoi(most)
		want := current
		if err == nil && err2 == nil && limit >= jumbo && n < jumbo {
			want = strconv.Itoa(jumbo)
		}
		command := "ip link set " + w + " mtu "
		l.manual("MTU of "+w, current, want, command+want, command+current, text{
			fmt.Sprintf("the device takes packets of up to %s bytes; all nodes, and the network between them, must "+
				"take them: ping -M do -s %d NODE", most, jumbo-28),
			"a sixth of the packets for the same bytes"})
	}
}
