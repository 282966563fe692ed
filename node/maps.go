package node

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/endpoint"
)

// put writes a row if it is not there already, and makes decisions stale that were made without it.
func put[K, V comparable](m *ebpf.Map, epochs *bpf.Epochs, key K, value V) error {
	var old V
	if m.Lookup(key, &old) == nil && old == value {
		return nil
	}
	if err := m.Put(key, value); err != nil {
		return err
	}
	return epochs.Bump(0)
}

func remove[K any](m *ebpf.Map, epochs *bpf.Epochs, key K) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return epochs.Bump(0)
}

// prune deletes the rows of m that keep refuses.
func prune[K, V any](m *ebpf.Map, epochs *bpf.Epochs, keep func(K, V) bool) error {
	var (
		key   K
		value V
		stale []K
	)
	rows := m.Iterate()
	for rows.Next(&key, &value) {
		if !keep(key, value) {
			stale = append(stale, key)
		}
	}
	errs := []error{rows.Err()}
	for _, key := range stale {
		errs = append(errs, remove(m, epochs, key))
	}
	return errors.Join(errs...)
}

type addressOps struct {
	datapath *bpf.Datapath
	epochs   *bpf.Epochs
}

const hostFlag = uint8(bpf.DatapathEndpointFlagENDPOINT_HOST)

func (o *addressOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, a *Address) error {
	row := bpf.DatapathEndpoint{Slot: endpoint.HostID, Flags: hostFlag}
	if a.Masquerade {
		row.Flags |= uint8(bpf.DatapathEndpointFlagENDPOINT_MASQUERADE)
	}
	if a.NoPorts {
		row.Flags |= uint8(bpf.DatapathEndpointFlagENDPOINT_NO_PORTS)
	}
	if err := o.datapath.MarkOwn(a.Addr); err != nil {
		return err
	}
	if err := put(o.datapath.Endpoints, o.epochs, bpf.Addr(a.Addr), row); err != nil {
		return fmt.Errorf("write host address %s: %w", a.Addr, err)
	}
	return nil
}

func (o *addressOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, a *Address) error {
	var row bpf.DatapathEndpoint
	if o.datapath.Endpoints.Lookup(bpf.Addr(a.Addr), &row) == nil && row.Flags&hostFlag == 0 {
		return nil
	}
	return remove(o.datapath.Endpoints, o.epochs, bpf.Addr(a.Addr))
}

func (o *addressOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Address, statedb.Revision]) error {
	wanted := map[bpf.DatapathAddr]bool{}
	for a := range rows {
		wanted[bpf.Addr(a.Addr)] = true
	}
	return prune(o.datapath.Endpoints, o.epochs, func(a bpf.DatapathAddr, row bpf.DatapathEndpoint) bool {
		return row.Flags&hostFlag == 0 || wanted[a]
	})
}

type wireOps struct {
	datapath *bpf.Datapath
	epochs   *bpf.Epochs
	table    statedb.Table[*Wire]
	xdp      bpf.XDPMode
	attached *Attached
}

// flags are the kinds of the wire, as the datapath has them.
func (w *Wire) flags() (f uint32) {
	for flag, is := range map[bpf.DatapathWireFlag]bool{
		bpf.DatapathWireFlagWIRE_TUNNEL: w.Tunnel, bpf.DatapathWireFlagWIRE_L3: w.L3,
		bpf.DatapathWireFlagWIRE_ENCRYPTED: w.Encrypted,
		bpf.DatapathWireFlagWIRE_WIREGUARD: w.Own && !slices.Contains(w.Hooks, bpf.FromIPsec),
	} {
		if is {
			f |= uint32(flag)
		}
	}
	return f
}

func (o *wireOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, w *Wire) error {
	row := bpf.DatapathWire{Addr4: bpf.Addr(w.IPv4), Addr6: bpf.Addr(w.IPv6), Mtu: uint32(w.MTU), Flags: w.flags()}
	if err := put(o.datapath.Wires, o.epochs, uint32(w.Index), row); err != nil {
		return fmt.Errorf("write wire %s: %w", w.Name, err)
	}
	mode := o.xdp
	if w.Tunnel {
		mode = bpf.XDPNone // its packets have been in the kernel's hands already
	}
	if state := o.datapath.Attacher.XDP(w.Name); mode != bpf.XDPNone || state.Mode != mode {
		o.datapath.Attacher.AttachXDP(w.xdp(), mode) // before from_wire, which leaves to it what XDP does on all wires
	}
	wanted := map[bpf.Hook]bool{}
	for _, h := range w.Hooks {
		wanted[h] = true
		if err := o.datapath.Attacher.Attach(h, w.Name, w.Index); err != nil {
			return err
		}
	}
	for _, h := range bpf.WireHooks() {
		if wanted[h] {
			continue
		}
		if err := o.datapath.Attacher.Detach(h, w.Name, w.Index); err != nil {
			return err
		}
	}
	o.attached.set(w.Index, true)
	return nil
}

func (o *wireOps) Delete(_ context.Context, txn statedb.ReadTxn, _ statedb.Revision, w *Wire) error {
	o.attached.set(w.Index, false)
	for other := range o.table.All(txn) {
		// The device was made anew: its pins have the same names, and Attach replaces them.
		if other.Name == w.Name {
			return remove(o.datapath.Wires, o.epochs, uint32(w.Index))
		}
	}
	errs := []error{remove(o.datapath.Wires, o.epochs, uint32(w.Index)), o.detachXDP(w)}
	for _, h := range bpf.WireHooks() {
		errs = append(errs, o.datapath.Attacher.Detach(h, w.Name, w.Index))
	}
	return errors.Join(errs...)
}

func (o *wireOps) detachXDP(w *Wire) error {
	if state := o.datapath.Attacher.AttachXDP(w.xdp(), bpf.XDPNone); state.Why != "" {
		return errors.New(state.Why)
	}
	return nil
}

func (o *wireOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Wire, statedb.Revision]) error {
	indexes, names := map[uint32]bool{}, map[string]bool{}
	for w := range rows {
		indexes[uint32(w.Index)], names[bpf.PinName(w.Name)] = true, true
		if w.VLAN != nil {
			names[bpf.PinName(w.VLAN.Name)] = true // XDP
		}
	}
	pins, err := o.datapath.Attacher.Pins()
	for _, pin := range pins {
		device, hook := bpf.SplitPin(pin)
		if !endpoint.IsLinkName(device) && !names[device] && !slices.Contains(bpf.ProxyHooks(), hook) {
			err = errors.Join(err, os.Remove(pin))
		}
	}
	return errors.Join(err, prune(o.datapath.Wires, o.epochs, func(i uint32, _ bpf.DatapathWire) bool {
		return indexes[i]
	}))
}

type prefixOps struct {
	datapath *bpf.Datapath
	epochs   *bpf.Epochs
}

func (o *prefixOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, p *Prefix) error {
	row := bpf.DatapathPrefix{Via: bpf.Addr(p.Via), Flags: uint32(bpf.DatapathPrefixFlagPREFIX_CLUSTER),
		Encryption: uint32(p.Encryption)}
	if p.Tunnel {
		row.Flags |= uint32(bpf.DatapathPrefixFlagPREFIX_TUNNEL)
	}
	if p.Node {
		row.Flags |= uint32(bpf.DatapathPrefixFlagPREFIX_NODE)
	}
	if p.Strict {
		row.Flags |= uint32(bpf.DatapathPrefixFlagPREFIX_STRICT)
	}
	if p.NoPorts {
		row.Flags |= uint32(bpf.DatapathPrefixFlagPREFIX_NO_PORTS)
	}
	if p.NodeEncrypts {
		row.Flags |= uint32(bpf.DatapathPrefixFlagPREFIX_NODE_ENCRYPTS)
	}
	if err := put(o.datapath.Prefixes, o.epochs, bpf.Prefix(p.Prefix), row); err != nil {
		return fmt.Errorf("write prefix %s: %w", p.Prefix, err)
	}
	return nil
}

func (o *prefixOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, p *Prefix) error {
	return remove(o.datapath.Prefixes, o.epochs, bpf.Prefix(p.Prefix))
}

func (o *prefixOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Prefix, statedb.Revision]) error {
	wanted := map[bpf.DatapathPrefixKey]bool{}
	for p := range rows {
		wanted[bpf.Prefix(p.Prefix)] = true
	}
	return prune(o.datapath.Prefixes, o.epochs, func(k bpf.DatapathPrefixKey, _ bpf.DatapathPrefix) bool {
		return wanted[k]
	})
}
