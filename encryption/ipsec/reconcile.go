package ipsec

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/route"
)

// peerOps makes the kernel's states and policies equal to the rows.
type peerOps struct {
	kernel *route.Kernel
	epochs *epochs
	// renewed is called when the node's epoch has become another one, so that peers are derived from it.
	renewed func()
	now     func() time.Time
	retired *retired

	mu   sync.Mutex
	made map[string]objects // by node
}

// Update makes what is missing, states first, and then removes what the row no longer wants. Packets are sent by a new
// state from one packet to the next, when the policy's template is replaced.
func (o *peerOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, p *Peer) error {
	if p.Problem != "" {
		return errors.Join(errors.New(p.Problem), o.drop(p.Node))
	}
	want, err := p.objects()
	if err != nil {
		return err
	}
	o.note(p.Node, want)
	for _, s := range want.states {
		if err := o.ensure(s, p.Way.FromEpoch); err != nil {
			return fmt.Errorf("node %s: %w", p.Node, err)
		}
	}
	for _, x := range want.policies {
		if err := x.set(o.kernel); err != nil {
			return fmt.Errorf("node %s: %w", p.Node, err)
		}
	}
	return o.keep(p.Node, want)
}

// ensure makes the state, unless the kernel has it. A state that was lost is not made again with its key: the node gets
// another epoch instead, and with it other keys for all states. So it does if two peers have the same SPI.
func (o *peerOps) ensure(s state, epoch string) error {
	have, err := find(o.kernel, s.id())
	if err != nil {
		return err
	}
	if have != nil && s.matches(have) {
		_, err := o.epochs.claim(s.keys)
		return err
	}
	if have != nil {
		return o.renew(epoch, fmt.Errorf("%s: another state has the SPI", s))
	}
	fresh, err := o.epochs.claim(s.keys)
	if err != nil {
		return err
	}
	if !fresh {
		return o.renew(epoch, fmt.Errorf("%s was removed, and its key can't be used again", s))
	}
	err = s.add(o.kernel)
	if errors.Is(err, unix.EEXIST) {
		return o.renew(epoch, err)
	}
	if err != nil {
		o.epochs.unclaim(s.keys)
	}
	return err
}

func (o *peerOps) renew(epoch string, why error) error {
	if err := o.epochs.renew(epoch); err != nil {
		return errors.Join(why, err)
	}
	o.renewed()
	return fmt.Errorf("%w: this node gets new keys", why)
}

// note adds what a node is going to have, so that it is removed some day also if only a part of it can be made.
func (o *peerOps) note(node string, want objects) {
	o.mu.Lock()
	defer o.mu.Unlock()
	made := o.made[node]
	known := setOf(made)
	for _, s := range want.states {
		o.retired.keep(s.id())
		if !known.states[s.id()] {
			made.states = append(made.states, s)
		}
	}
	for _, x := range want.policies {
		if !known.policies[x.id()] {
			made.policies = append(made.policies, x)
		}
	}
	o.made[node] = made
}

// keep notes what a node has now, and removes what it had before; a state that packets were sent with after a while, if
// they are sent with another one now.
func (o *peerOps) keep(node string, want objects) error {
	wanted := setOf(want)
	o.mu.Lock()
	before := o.made[node]
	o.made[node] = want
	others := setOf(objects{})
	for name, made := range o.made {
		if name != node {
			others.add(made)
		}
	}
	o.mu.Unlock()
	var errs []error
	for _, x := range before.policies {
		if i := x.id(); !wanted.policies[i] && !others.policies[i] {
			errs = append(errs, i.remove(o.kernel))
		}
	}
	for _, s := range before.states {
		switch i := s.id(); {
		case wanted.states[i]:
		case s.sends && len(want.states) > 0:
			o.retired.add(i, o.now())
		default:
			errs = append(errs, i.remove(o.kernel))
		}
	}
	return errors.Join(errs...)
}

// drop removes what a node has.
func (o *peerOps) drop(node string) error {
	err := o.keep(node, objects{})
	o.mu.Lock()
	delete(o.made, node)
	o.mu.Unlock()
	return err
}

// Delete removes the peer's states and policies.
func (o *peerOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, p *Peer) error {
	return o.drop(p.Node)
}

// Prune removes what an earlier agent made and no row wants. What that may have sent with lingers.
func (o *peerOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Peer, statedb.Revision]) error {
	wanted, own := setOf(objects{}), map[netip.Addr]bool{}
	for p := range rows {
		if p.Problem != "" {
			continue
		}
		want, err := p.objects()
		if err != nil {
			return err
		}
		wanted.add(want)
		own[p.Way.From] = true
	}
	return clear(o.kernel, wanted, func(x *netlink.XfrmState) bool {
		from, _ := netip.AddrFromSlice(x.Src)
		if !own[from.Unmap()] {
			return false
		}
		o.retired.add(idOf(x), o.now())
		return true
	})
}

// lost are the nodes of which the kernel does not have all states.
func (o *peerOps) lost(have []netlink.XfrmState) (nodes []string) {
	there := map[id]bool{}
	for i := range have {
		there[idOf(&have[i])] = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for node, made := range o.made {
		for _, s := range made.states {
			if !there[s.id()] {
				nodes = append(nodes, node)
				break
			}
		}
	}
	return nodes
}

// set is identifiers of states and policies.
type set struct {
	states   map[id]bool
	policies map[policyID]bool
}

func setOf(o objects) set {
	s := set{map[id]bool{}, map[policyID]bool{}}
	s.add(o)
	return s
}

func (s set) add(o objects) {
	for _, x := range o.states {
		s.states[x.id()] = true
	}
	for _, x := range o.policies {
		s.policies[x.id()] = true
	}
}

func idOf(x *netlink.XfrmState) id {
	to, _ := netip.AddrFromSlice(x.Dst)
	return id{to.Unmap(), uint32(x.Spi)}
}

// clear removes our states and policies but those to keep, and states that retire takes; nil: none.
func clear(k *route.Kernel, keep set, retire func(*netlink.XfrmState) bool) error {
	policies, err := listPolicies(k)
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range policies {
		if !keep.policies[i] {
			errs = append(errs, i.remove(k))
		}
	}
	states, err := listStates(k)
	for i := range states {
		x := &states[i]
		if of := idOf(x); !keep.states[of] && (retire == nil || !retire(x)) {
			errs = append(errs, of.remove(k))
		}
	}
	return errors.Join(append(errs, err)...)
}
