package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"myelin/bpf"
)

// frontSettings are an agent's for Services packet by packet, its other features off. The ports are those that it takes
// by default.
func frontSettings() bpf.Settings {
	return bpf.Settings{Ipv4: 1, Ipv6: 1, Services: 1, LbPortMin: 32768, LbPortMax: 60999, NodePortMin: 30000,
		NodePortMax: 32767}
}

// settings are those of frontSettings, with DSR by IPIP if the front has it.
func (m *mine) settings() bpf.Settings {
	s := frontSettings()
	if m.ipip {
		s.Direct, s.LbMode = 1, uint8(bpf.DatapathLbModeLB_DSR)
		s.LbDispatch = uint8(bpf.DatapathLbDispatchDISPATCH_IPIP)
	}
	return s
}

// maglevRows is what an agent has room for by default.
const maglevRows = 1 << 18

func (m *mine) begin(ctx context.Context, f *front, all *objects, ports int) (err error) {
	if m.dir, err = os.MkdirTemp("", f.prefix); err != nil {
		return err
	}
	sizes := bpf.Sizes{Services: 1 << 16, Translations: m.natEntries, Paths: m.paths}
	if f.maglev {
		sizes.MaglevTables = maglevRows
	}
	m.balancer, err = newBalancer(ctx, m.dir, m.settings(), sizes, func(d *bpf.Datapath) (func() error, error) {
		return nil, m.hang(f, d)
	})
	if err != nil {
		return err
	}
	// Without the node's addresses, all packets to a Service's port might be for it.
	if err := m.balancer.kernel.SetOwn([]netip.Addr{f.address()}); err != nil {
		return err
	}
	services, slices, err := all.rows()
	if err == nil {
		err = m.balancer.put(services, slices)
	}
	if err != nil {
		return err
	}
	// frontends: its cluster IP and its external one
	return m.balancer.written(ctx, 2*ports, ports*len(f.backends()))
}

// hang writes what package node would, and attaches the programs as it does. They are taken off with their pins.
func (m *mine) hang(f *front, d *bpf.Datapath) error {
	const mtu, slot = 1500, 1
	addr := f.address()
	wire := bpf.DatapathWire{Mtu: mtu, Addr4: bpf.Addr(addr)}
	if f.family == IPv6 {
		wire = bpf.DatapathWire{Mtu: mtu, Addr6: bpf.Addr(addr)}
	}
	host := bpf.DatapathEndpoint{Slot: slot, Flags: uint8(bpf.DatapathEndpointFlagENDPOINT_HOST)}
	err := errors.Join(d.Wires.Put(uint32(f.index[0]), wire), d.Endpoints.Put(bpf.Addr(addr), host))
	if err != nil {
		return fmt.Errorf("write wire and node: %w", err)
	}
	return inNetns(f.prefix+"a", func() error {
		if err := d.Attacher.Attach(bpf.FromWire, "wire0", f.index[0]); err != nil {
			return err
		}
		if !m.xdp {
			return nil
		}
		if state := d.Attacher.AttachXDP(bpf.XDPDevice{Name: "wire0", Index: f.index[0]},
			bpf.XDPNative); state.Why != "" {
			return errors.New(state.Why)
		}
		return nil
	})
}
