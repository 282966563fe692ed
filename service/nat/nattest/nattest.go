// Package nattest writes and reads NAT entries in tests.
package nattest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster/clustertest"
	"myelin/flow"
	"myelin/service"
	"myelin/service/nat"
)

// Flags of entries.
const (
	Replied = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED)
	Closing = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_CLOSING)
)

// Flow is what Put makes an entry of.
type Flow struct {
	V6               bool
	Protocol         service.Protocol
	Port             uint16 // of the client
	Service, Backend uint32
	Flags            uint8
	Idle             time.Duration
}

// Put writes the entries of a flow.
func Put(t testing.TB, d *bpf.Datapath, f Flow) {
	t.Helper()
	clock, err := flow.ReadClock(1000)
	if err != nil {
		t.Fatal(err)
	}
	client := bpf.Addr(netip.MustParseAddr(clustertest.Named("@node9", f.V6, false)))
	key := bpf.DatapathNatTuple{Src: client, Sport: bpf.Port(f.Port), Proto: uint8(f.Protocol)}
	row := bpf.DatapathNatEntry{
		Service: f.Service, BackendId: f.Backend, Flags: f.Flags,
		Packets: [2]uint64{3, 2}, Seen: uint32(clock.Ticks) - uint32(f.Idle/time.Millisecond),
	}
	if f.Flags != 0 {
		row.TcpFlags[0] = flow.ACK // the client has completed the handshake
	}
	reply := bpf.DatapathNatReply{Request: key}
	if err := errors.Join(d.NatEntries.Put(key, row), d.NatReplies.Put(bpf.ReplyTuple(&key, &row), reply)); err != nil {
		t.Fatal(err)
	}
}

// Replies returns the number of entries of replies.
func Replies(t testing.TB, d *bpf.Datapath) (n int) {
	t.Helper()
	err := bpf.Each(d.NatReplies, func(*bpf.DatapathNatTuple, *bpf.DatapathNatReply) bool { n++; return true })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Texts are the entries as text, by protocol and client port. Entries whose counters are not those that Put wrote fail
// the test.
func Texts(t testing.TB, d *bpf.Datapath) string {
	t.Helper()
	var out []string
	err := bpf.Each(d.NatEntries, func(key *bpf.DatapathNatTuple, row *bpf.DatapathNatEntry) bool {
		proto, port := service.Protocol(key.Proto), bpf.Port(key.Sport)
		out = append(out, fmt.Sprintf("%s %d to %d %s", proto, port, row.BackendId, nat.State(row)))
		if row.Packets != [2]uint64{3, 2} {
			t.Errorf("counts of %+v were lost", row)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
