package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// ReplyTuple is the key in nat_replies of the flow with the NAT entry r, whose key is k.
func ReplyTuple(k *DatapathNatTuple, r *DatapathNatEntry) DatapathNatTuple {
	reply := DatapathNatTuple{
		Src: r.Backend, Sport: r.BackendPort, Dst: k.Src, Dport: k.Sport, Proto: k.Proto,
	}
	if DatapathNatEntryFlag(r.Flags)&DatapathNatEntryFlagNAT_ENTRY_SNAT != 0 {
		reply.Dst, reply.Dport = r.Snat, r.NatPort
	}
	return reply
}

// hasReply reports whether the flow has an entry in nat_replies, as nat_entry_has_reply does.
func hasReply(r *DatapathNatEntry) bool {
	return DatapathNatEntryFlag(r.Flags)&DatapathNatEntryFlagNAT_ENTRY_DSR == 0 || r.BackendId == 0
}

// ReadNatReply reads the entry of the flow's replies. It returns false if there is none, or if it is another flow's.
func (o *Objects) ReadNatReply(k *DatapathNatTuple, r *DatapathNatEntry, reply *DatapathNatReply) (bool, error) {
	found, err := Get(o.NatReplies, ReplyTuple(k, r), reply)
	return found && reply.Request == *k, err
}

// DeleteNatReply deletes the entry of a flow's replies, after the NAT entry. A new flow may take the tuple at the same
// time: its entry is put back.
func (o *Objects) DeleteNatReply(k *DatapathNatTuple, r *DatapathNatEntry) error {
	var reply DatapathNatReply
	if own, err := o.ReadNatReply(k, r, &reply); err != nil || !own {
		return err
	}
	tuple := ReplyTuple(k, r)
	own := func(reply *DatapathNatReply) bool { return reply.Request == *k }
	if _, _, err := DeleteIf(o.NatReplies, &tuple, own); err != nil {
		return fmt.Errorf("delete an entry of nat_replies: %w", err)
	}
	return nil
}

// formerNatKey and formerNatEntry are the layout of nat_entries before there were nat_replies: both directions found
// an entry by the port that they share.
type formerNatKey struct {
	Addr        DatapathAddr
	Port        uint16
	Proto, Slot uint8
}

type formerNatEntry struct {
	Client, Frontend, Backend, Snat       DatapathAddr
	ClientPort, FrontendPort, BackendPort uint16
	Flags, _                              uint8
	Service, BackendID, Seen, PolicyEpoch uint32
	Created                               uint64
	Packets, Bytes                        [2]uint64
	TCPFlags                              [2]uint8
	_                                     [2]uint8
	Timestamp                             uint32
}

const formerNatKeySize, formerNatEntrySize = 20, 136 // bytes

// convertNatEntries fills nat_entries and nat_replies from a map of the former layout.
func (o *Objects) convertNatEntries(from *ebpf.Map) string {
	copied, lost := 0, 0
	err := Each(from, func(k *formerNatKey, r *formerNatEntry) bool {
		key := DatapathNatTuple{
			Src: r.Client, Sport: r.ClientPort, Dst: r.Frontend, Dport: r.FrontendPort, Proto: k.Proto,
		}
		row := DatapathNatEntry{
			Backend: r.Backend, BackendPort: r.BackendPort, Snat: r.Snat, Service: r.Service, BackendId: r.BackendID,
			Seen: r.Seen, PolicyEpoch: r.PolicyEpoch, Packets: r.Packets,
			Bytes: r.Bytes, TcpFlags: r.TCPFlags, Timestamp: r.Timestamp,
			Flags: r.Flags &^ 64, // NAT_ENTRY_INDEXED
		}
		row.SetCreatedAt(r.Created)
		if DatapathNatEntryFlag(r.Flags)&DatapathNatEntryFlagNAT_ENTRY_SNAT != 0 {
			row.NatPort = k.Port
		}
		err := o.NatEntries.Put(key, row)
		if hasReply(&row) {
			err = errors.Join(err, o.NatReplies.Put(ReplyTuple(&key, &row), DatapathNatReply{Request: key}))
		}
		if err != nil {
			lost++
		} else {
			copied++
		}
		return true
	})
	if err != nil {
		return "its rows are lost: " + err.Error()
	}
	return fmt.Sprintf("%d rows converted, %d lost", copied, lost)
}
