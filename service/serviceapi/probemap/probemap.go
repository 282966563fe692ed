// Package probemap writes the flows of health checks to the BPF map probes, so that the datapath sends their packets as
// those of clients.
package probemap

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/service/serviceapi/probe"
)

// Flows implements probe.Flows.
type Flows struct {
	m   *ebpf.Map
	via probe.Via
}

// New deletes what an agent before has left. via names how packets are sent by DSR.
func New(d *bpf.Datapath, via probe.Via) (*Flows, error) {
	var left []bpf.DatapathNatTuple
	err := bpf.Each(d.Probes, func(key *bpf.DatapathNatTuple, _ *bpf.DatapathProbe) bool {
		left = append(left, *key)
		return true
	})
	for _, key := range left {
		err = errors.Join(err, remove(d.Probes, &key))
	}
	if err != nil {
		return nil, fmt.Errorf("delete the previous agent's flows of health checks: %w", err)
	}
	return &Flows{d.Probes, via}, nil
}

// Mark implements probe.Flows.
func (*Flows) Mark() uint32 { return uint32(bpf.DatapathProbeMarkPROBE_MARK) }

// DSR implements probe.Flows.
func (f *Flows) DSR() probe.Via { return f.via }

// keys are the tuples of requests and replies.
func keys(f *probe.Flow) (request, reply bpf.DatapathNatTuple) {
	at := netip.AddrPortFrom(f.Frontend.Address.Addr(), f.Port)
	return tuple(f.Local, f.Backend), tuple(at, f.Local)
}

func tuple(src, dst netip.AddrPort) bpf.DatapathNatTuple {
	return bpf.DatapathNatTuple{Src: bpf.Addr(src.Addr()), Sport: bpf.Port(src.Port()), Dst: bpf.Addr(dst.Addr()),
		Dport: bpf.Port(dst.Port()), Proto: unix.IPPROTO_TCP}
}

// Open implements probe.Flows.
func (f *Flows) Open(flow *probe.Flow) error {
	request, reply := keys(flow)
	back := bpf.DatapathProbe{Addr: bpf.Addr(flow.Backend.Addr()), Port: bpf.Port(flow.Backend.Port()), Reply: 1}
	there := bpf.DatapathProbe{Addr: reply.Src, Port: reply.Sport, Proto: flow.Frontend.Protocol,
		FrontendPort: bpf.Port(flow.Frontend.Address.Port())}
	if err := f.m.Update(&reply, &back, ebpf.UpdateNoExist); err != nil {
		return fmt.Errorf("write probe of %s for %s: %w", flow.Backend, flow.Frontend.Address, err)
	}
	if err := f.m.Update(&request, &there, ebpf.UpdateNoExist); err != nil {
		return errors.Join(fmt.Errorf("write probe of %s: %w", flow.Backend, err), remove(f.m, &reply))
	}
	return nil
}

// Close implements probe.Flows.
func (f *Flows) Close(flow *probe.Flow) (probe.Trace, error) {
	request, reply := keys(flow)
	var there, back bpf.DatapathProbe
	_, err1 := bpf.Get(f.m, request, &there)
	_, err2 := bpf.Get(f.m, reply, &back)
	err := errors.Join(err1, err2, remove(f.m, &request), remove(f.m, &reply))
	if err != nil {
		err = fmt.Errorf("end probe of %s: %w", flow.Backend, err)
	}
	way := bpf.DatapathProbeWay(there.Way)
	return probe.Trace{
		DSR:     way == bpf.DatapathProbeWayPROBE_DSR,
		Early:   way == bpf.DatapathProbeWayPROBE_UNSEEN || way == bpf.DatapathProbeWayPROBE_NO_FRONTEND,
		Replies: back.Packets,
	}, err
}

func remove(m *ebpf.Map, key *bpf.DatapathNatTuple) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}
