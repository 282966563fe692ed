package nat

import (
	"errors"
	"fmt"
	"time"

	"myelin/bpf"
)

// orphanInterval is how often entries of nat_replies whose NAT entry is gone are searched. They do no harm: a new flow
// takes their place. They are left by NAT entries that the kernel evicted.
const orphanInterval = time.Minute

// orphans deletes entries of nat_replies whose NAT entry is gone.
type orphans struct {
	datapath *bpf.Datapath
	last     time.Time
	suspects map[bpf.DatapathNatTuple]bool // had no NAT entry at the last search
}

// delete searches if it is time, and deletes what had no NAT entry at the search before either: the datapath inserts
// the reply's entry before the NAT entry.
func (o *orphans) delete() error {
	if now := time.Now(); now.Sub(o.last) >= orphanInterval {
		o.last = now
		return o.pass()
	}
	return nil
}

func (o *orphans) pass() error {
	found := map[bpf.DatapathNatTuple]bool{}
	var failed error
	err := bpf.Each(o.datapath.NatReplies, func(k *bpf.DatapathNatTuple, r *bpf.DatapathNatReply) bool {
		var orphan bool
		if orphan, failed = o.isOrphan(r); orphan {
			found[*k] = true
		}
		return failed == nil
	})
	for k := range found {
		if err == nil && failed == nil && o.suspects[k] {
			failed = o.deleteOrphan(k)
			delete(found, k)
		}
	}
	o.suspects = found
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("delete entries of nat_replies without a flow: %w", err)
	}
	return nil
}

func (o *orphans) isOrphan(r *bpf.DatapathNatReply) (bool, error) {
	var t bpf.DatapathNatEntry
	has, err := bpf.Get(o.datapath.NatEntries, &r.Request, &t)
	return !has && err == nil, err
}

// deleteOrphan looks once more: another flow may have the tuple by now.
func (o *orphans) deleteOrphan(k bpf.DatapathNatTuple) error {
	var r bpf.DatapathNatReply
	has, err := bpf.Get(o.datapath.NatReplies, &k, &r)
	if err != nil || !has {
		return err
	}
	if orphan, err := o.isOrphan(&r); err != nil || !orphan {
		return err
	}
	same := func(now *bpf.DatapathNatReply) bool { return now.Request == r.Request }
	_, _, err = bpf.DeleteIf(o.datapath.NatReplies, &k, same)
	return err
}
