package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"myelin/bpf"
	"myelin/event"
	"myelin/flow"
)

// Entry is a NAT entry with names, as lists show it.
type Entry struct {
	Client   event.Party    `json:"client"`
	Frontend netip.AddrPort `json:"frontend"`
	Backend  event.Party    `json:"backend"`
	Protocol string         `json:"protocol"`
	// Service is "namespace/name", or the number of a Service that was deleted. It is empty if another node selected
	// the backend.
	Service string `json:"service,omitempty"`
	// Translated is the source that the backend sees instead of the client; invalid if it sees the client.
	Translated netip.AddrPort `json:"translated,omitzero"`
	// Direct is set with DSR: replies do not pass the node that selected the backend.
	Direct bool `json:"direct,omitempty"`
	flow.Course
}

// Entries calls fn for each NAT entry until it returns false. services returns the name of a Service by number.
func Entries(
	d *bpf.Datapath, names event.Names, services func(uint32) string, clock flow.Clock, fn func(*Entry) bool,
) error {
	var failed error
	err := bpf.Each(d.NatEntries, func(k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) bool {
		var reply bpf.DatapathNatReply
		own, err := d.ReadNatReply(k, r, &reply)
		if failed = err; err != nil {
			return false
		}
		if own { // what has not been flushed
			r.Packets[1] += uint64(reply.Packets)
			r.Bytes[1] += reply.Bytes
			r.TcpFlags[1] |= reply.TcpFlags
		}
		return fn(newEntry(names, services, clock, k, r))
	})
	err = errors.Join(err, failed)
	if err != nil {
		return fmt.Errorf("read flows of Services: %w", err)
	}
	return nil
}

func newEntry(
	names event.Names, services func(uint32) string, clock flow.Clock,
	k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry,
) *Entry {
	at := func(a bpf.DatapathAddr, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(a.Netip(), bpf.Port(port))
	}
	out := &Entry{
		Client: flow.PartyOf(names, at(k.Src, k.Sport)), Frontend: at(k.Dst, k.Dport),
		Backend: flow.PartyOf(names, at(r.Backend, r.BackendPort)), Protocol: event.Protocol(k.Proto),
		Direct: r.Flags&uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_DSR) != 0,
		Course: flow.Course{
			State: State(r), Sent: trafficOf(r, 0), Received: trafficOf(r, 1),
			Age:  flow.Seconds(clock.Age(r.CreatedAt())),
			Idle: flow.Seconds(clock.Idle(r.Seen)), Expired: Expired(clock, k, r),
		},
	}
	if r.Service != 0 {
		if out.Service = services(r.Service); out.Service == "" {
			out.Service = strconv.FormatUint(uint64(r.Service), 10)
		}
	}
	if r.Flags&uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_SNAT) != 0 {
		out.Translated = at(r.Snat, r.NatPort)
	}
	return out
}

func trafficOf(r *bpf.DatapathNatEntry, side int) flow.Traffic {
	return flow.Traffic{Packets: r.Packets[side], Bytes: r.Bytes[side], TCPFlags: event.TCPFlags(r.TcpFlags[side])}
}

// TableHeader names the columns of TableRow.
func (*Entry) TableHeader() []string {
	own := []string{"Client", "Frontend", "Backend", "Protocol", "Service", "Translated"}
	return append(own, (*flow.Course)(nil).TableHeader()...)
}

// TableRow is the row as text.
func (e *Entry) TableRow() []string {
	name, translated := e.Service, "-"
	if name == "" {
		name = "-"
	}
	switch {
	case e.Translated.IsValid():
		translated = e.Translated.String()
	case e.Direct:
		translated = "direct"
	}
	own := []string{e.Client.String(), e.Frontend.String(), e.Backend.String(), e.Protocol, name, translated}
	return append(own, e.Course.TableRow()...)
}
