package maps

import (
	"errors"
	"fmt"
	"net/netip"

	"myelin/bpf"
	"myelin/service"
)

// The datapath asks whether an address is a Service's at all before it looks
// at ports: such an address has a row with port 0 and protocol 0, which says
// for which clients. It is there before the frontends and stays until after
// them.

// isAddress reports whether a key is an address's and no frontend's.
func isAddress(key *bpf.DatapathFrontendKey) bool { return key.Port == 0 && key.Proto == 0 }

// addressFlags are the clients that an address has frontends for.
func (k *Kernel) addressFlags(a bpf.DatapathAddr) (flags uint32) {
	if k.tally.scopes[a][internal] > 0 {
		flags |= internalFlag
	}
	if k.tally.scopes[a][external] > 0 {
		flags |= externalFlag
	}
	return flags
}

// ensureAddress gives an address the row that a frontend with flags needs, and
// returns the flags that the row has then.
func (k *Kernel) ensureAddress(a bpf.DatapathAddr, flags uint32) (uint32, error) {
	key := bpf.DatapathFrontendKey{Addr: a}
	var row bpf.DatapathFrontend
	if _, err := bpf.Get(k.datapath.Frontends, key, &row); err != nil {
		return 0, fmt.Errorf("read the row of address %s: %w", frontendL4(key).Addr(), err)
	}
	want := flags & (externalFlag | internalFlag)
	if row.Flags&want == want {
		return row.Flags, nil
	}
	want |= row.Flags
	if err := k.putAddress(key, want); err != nil {
		return row.Flags, err
	}
	return want, nil
}

// syncAddress makes the row of an address, which has flags now, what its
// frontends say, and what all addresses mean to the node's own.
func (k *Kernel) syncAddress(a bpf.DatapathAddr, has uint32) error {
	key, want := bpf.DatapathFrontendKey{Addr: a}, k.addressFlags(a)
	var err error
	switch want {
	case has:
	case 0:
		if err = deleteRow(k, k.datapath.Frontends, key); err != nil {
			err = fmt.Errorf("delete the row of address %s: %w", frontendL4(key).Addr(), err)
		}
	default:
		err = k.putAddress(key, want)
	}
	return errors.Join(err, k.updateOwnPorts())
}

func (k *Kernel) putAddress(key bpf.DatapathFrontendKey, flags uint32) error {
	if err := putRow(k, k.datapath.Frontends, key, bpf.DatapathFrontend{Flags: flags}); err != nil {
		return fmt.Errorf("write the row of address %s: %w", frontendL4(key).Addr(), err)
	}
	return nil
}

// syncAddresses makes the rows of all addresses what their frontends say.
func (k *Kernel) syncAddresses() error {
	rows := map[bpf.DatapathAddr]uint32{}
	err := bpf.Each(k.datapath.Frontends, func(key *bpf.DatapathFrontendKey, row *bpf.DatapathFrontend) bool {
		if isAddress(key) {
			rows[key.Addr] = row.Flags
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("read addresses: %w", err)
	}
	for a := range k.tally.scopes {
		if _, ok := rows[a]; !ok {
			rows[a] = 0
		}
	}
	var errs []error
	for a, has := range rows {
		errs = append(errs, k.syncAddress(a, has))
	}
	return errors.Join(errs...)
}

// SetOwn says which addresses the node has itself. As long as nobody says it,
// any may be the node's, which costs packets to the node's own ports a look-up.
func (k *Kernel) SetOwn(list []netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.own = make(map[bpf.DatapathAddr]bool, len(list))
	for _, a := range list {
		k.own[bpf.Addr(a)] = true
	}
	return k.updateOwnPorts()
}

// updateOwnPorts tells the datapath whether Services have ports of the node's own
// addresses that are no node ports.
func (k *Kernel) updateOwnPorts() error {
	var has, want uint32
	if k.ownPorts() {
		want = 1
	}
	err := k.datapath.OwnPorts.Get(&has)
	if err == nil && has != want {
		err = k.datapath.OwnPorts.Set(want)
	}
	if err != nil {
		return fmt.Errorf("say whether Services have ports of the node's own: %w", err)
	}
	return nil
}

func (k *Kernel) ownPorts() bool {
	if k.own == nil {
		return len(k.tally.others) > 0
	}
	for _, v6 := range []bool{false, true} {
		if k.tally.others[bpf.Addr(service.AnyAddress(v6))] > 0 {
			return true
		}
	}
	for a := range k.own {
		if k.tally.others[a] > 0 {
			return true
		}
	}
	return false
}
