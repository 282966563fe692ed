package flow

import (
	"sync/atomic"
	"time"
)

// demandLead is for how long a table must have room for what comes, at least: about what a reload with a larger one
// takes. leadLimit is the longest time, for agents whose start is slow.
const demandLead, leadLimit = time.Second, 5 * time.Second

// demandOnce and demandTwice are what an entry adds to the demand of its table. One endpoint has half of a table for
// entries that are not evicted, and a quarter for others (Shares.yields): those count twice, so that it grows as soon.
const demandOnce, demandTwice = 1, 2

// Demand is how many entries a table must have room for because of one: 0 if its flow is over or may be one of a flood
// with forged sources, or if its eviction does no harm.
//
// A flow counts while it is proven. One that is closed counts while the server may be in TIME-WAIT: its entry keeps the
// NAT port from being used for a SYN that the server would refuse (RFC 6191). Both ends must have sent FIN after a
// handshake, because an end that sends FIN has accepted the connection, and does not accept one whose client has not
// received its SYN-ACK (RFC 9293 3.10.7.4). An RST shows nothing: it answers forged segments, too.
func Demand(clock Clock, k *Key, r *Row) int {
	if clock.Expired(k, r) {
		return 0
	}
	from := origin(r)
	return DemandOf(proven(k, r), timeWait(r), r.Side[from].TcpFlags, r.Side[1-from].TcpFlags)
}

// DemandOf is Demand by what is known of a flow: whether it is proven, whether the server may be in TIME-WAIT if it is
// closed, and the TCP flags of both ends, none of other protocols.
func DemandOf(proven, timeWait bool, opener, acceptor uint8) int {
	switch {
	case proven:
		return demandOnce
	case timeWait && opener&ACK != 0 && opener&acceptor&FIN != 0:
		return demandTwice
	}
	return 0
}

// demand is how many entries a table needs, counted in passes over it. Times are those of the datapath's clock.
type demand struct {
	soon atomic.Int64 // as of the last pass, with what comes in lead
	lead atomic.Int64 // ns, from demandLead to leadLimit; 0: demandLead

	proven, closed, evicted int        // of the current pass: of remaining entries by kind, and of evicted ones
	early                   []eviction // of the last TimeWait
	last                    int        // of closed flows, as of the last pass
	at                      time.Duration
}

// eviction is the demand of entries that were evicted in a pass. These would be in the table still.
type eviction struct {
	at      time.Duration
	entries int
}

func (d *demand) begin() { d.proven, d.closed, d.evicted = 0, 0, 0 }

// add counts the demand of an entry that remains.
func (d *demand) add(entries int) {
	if entries == demandTwice {
		d.closed += entries
	} else {
		d.proven += entries
	}
}

// end sets soon to what the pass has counted, and what closed flows add in lead if they increase as since the last
// pass: they stay for TimeWait, while proven ones may be over soon.
func (d *demand) end(now time.Duration) {
	for len(d.early) > 0 && now-d.early[0].at > TimeWait {
		d.early = d.early[1:]
	}
	if d.evicted > 0 {
		d.early = append(d.early, eviction{now, d.evicted})
	}
	closed := d.closed
	for _, e := range d.early {
		closed += e.entries
	}
	soon := d.proven + closed
	if d.at != 0 && closed > d.last {
		lead := max(demandLead, time.Duration(d.lead.Load()))
		soon += int(time.Duration(closed-d.last) * lead / max(now-d.at, LookInterval))
	}
	d.last, d.at = closed, now
	d.soon.Store(int64(soon))
}
