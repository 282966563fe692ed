package maps

import (
	"errors"
	"fmt"
	"net/netip"

	"myelin/bpf"
	"myelin/service"
)

// Before the datapath looks up a port, it looks up whether the address has frontends at all. Such an address has a row
// with port 0 and protocol 0, whose flags are the scopes of the frontends. It is written before the frontends and
// deleted after them.

// isAddress reports whether a key is that of an address, and not of a frontend.
func isAddress(key *bpf.DatapathFrontendKey) bool { return key.Port == 0 && key.Proto == 0 }

// addressFlags are the scopes in which an address has frontends.
func (k *Kernel) addressFlags(a bpf.DatapathAddr) (flags uint32) {
	if k.tally.scopes[a][internal] > 0 {
		flags |= internalFlag
	}
	if k.tally.scopes[a][external] > 0 {
		flags |= externalFlag
	}
	return flags
}

// ensureAddress writes the row of an address, if it lacks flags that a frontend requires, and returns the flags that it
// then has.
func (k *Kernel) ensureAddress(a bpf.DatapathAddr, flags uint32) (uint32, error) {
	key := bpf.DatapathFrontendKey{Addr: a}
	if err := k.datapath.MarkFrontend(a.Netip()); err != nil { // the row may be older than the filter
		return 0, err
	}
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

// syncAddress makes the row of an address, whose flags are has, equal to what its frontends require, and updates
// own_ports.
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

// syncAddresses is syncAddress for all addresses.
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

// SetOwn sets the node's own addresses. Until it is called, any address may be one of them, which costs packets to the
// node's own ports a lookup.
func (k *Kernel) SetOwn(list []netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.own = make(map[bpf.DatapathAddr]bool, len(list))
	for _, a := range list {
		k.own[bpf.Addr(a)] = true
	}
	return k.updateOwnPorts()
}

// updateOwnPorts tells the datapath whether Services have ports of the node's own addresses that are no node ports.
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
		return fmt.Errorf("set own_ports: %w", err)
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
