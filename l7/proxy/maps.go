package proxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/l7/dns"
)

// awaitTime is between two looks for the datapath's maps.
const awaitTime = 500 * time.Millisecond

// kernelMaps are the maps of the datapath that the proxy uses.
type kernelMaps struct {
	flows, names, sockets, cpus *ebpf.Map
	questions                   *ebpf.Map // nil: the datapath is older than the map
}

func openMaps(dir string) (m kernelMaps, err error) {
	for name, into := range map[string]**ebpf.Map{"flows": &m.flows, "names": &m.names, "proxy_sockets": &m.sockets,
		"dns_entries": &m.questions, "cpus": &m.cpus} {
		opened, bad := ebpf.LoadPinnedMap(filepath.Join(dir, "maps", name), nil)
		if bad != nil && (into != &m.questions || !errors.Is(bad, fs.ErrNotExist)) {
			err = errors.Join(err, fmt.Errorf("open map %s: %w", name, bad))
		}
		*into = opened
	}
	return m, err
}

// datapath has the current maps: an agent of another version may replace them.
type datapath struct {
	dir     string
	clock   dns.SystemClock
	current atomic.Pointer[kernelMaps]
}

// reopen opens the maps that are pinned now. Those opened before stay open until they are not used any more.
func (m *datapath) reopen() error {
	opened, err := openMaps(m.dir)
	if err != nil {
		return err
	}
	m.current.Store(&opened)
	return nil
}

// await opens the maps when the agent has loaded the datapath, which may start after the proxy.
func (m *datapath) await(ctx context.Context, log *slog.Logger) error {
	told := false
	for {
		err := m.reopen()
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !told {
			log.Info("The proxy waits for the datapath, which the agent loads", "error", err)
			told = true
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(awaitTime):
		}
	}
}

// rules returns the rules that allow a flow, by its conntrack entry; ok is false if there is none, or if the
// destination has opened the flow.
func (m *datapath) rules(source, destination netip.AddrPort, proto uint8) (rules dns.FlowRules, ok bool) {
	key, side := bpf.FlowKey(source, destination, proto)
	var row bpf.DatapathFlow
	if m.current.Load().flows.Lookup(&key, &row) != nil || int(row.Origin) != side {
		return rules, false
	}
	return dns.FlowRules{Numbers: row.Rule, Epoch: row.PolicyEpoch}, true
}

// listen makes a socket the one that the datapath redirects new connections to.
func (m *datapath) listen(fd uintptr) error {
	key := uint32(bpf.DatapathProxySocketPROXY_LISTENER)
	if err := m.current.Load().sockets.Put(key, uint64(fd)); err != nil {
		return fmt.Errorf("write proxy_sockets: %w", err)
	}
	return nil
}

// Put implements dns.Map.
func (m *datapath) Put(slot uint16, a netip.Addr, e dns.Entry) error {
	row := bpf.DatapathName{Expires: e.Expires}
	copy(row.Selector[:], e.Selectors)
	return m.current.Load().names.Put(nameKey(slot, a), &row)
}

// Delete implements dns.Map.
func (m *datapath) Delete(slot uint16, a netip.Addr) error {
	err := m.current.Load().names.Delete(nameKey(slot, a))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

func nameKey(slot uint16, a netip.Addr) *bpf.DatapathNameKey {
	return &bpf.DatapathNameKey{Addr: bpf.Addr(a), Slot: uint32(slot)}
}

// peers returns which addresses the pods with these addresses have flows with.
func (m *datapath) peers(pods map[netip.Addr]uint16) (map[peer]bool, error) {
	found := map[peer]bool{}
	err := bpf.Each(m.current.Load().flows, func(key *bpf.DatapathFlowKey, row *bpf.DatapathFlow) bool {
		ends := [2]netip.Addr{key.Addr[0].Netip(), key.Addr[1].Netip()}
		if row.Flags&uint8(bpf.DatapathFlowFlagFLOW_NAT) != 0 {
			ends[row.PodSide&1] = row.Pod.Netip()
		}
		for i, end := range ends {
			if slot, ok := pods[end]; ok {
				found[peer{slot, ends[1-i]}] = true
			}
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read conntrack entries: %w", err)
	}
	return found, nil
}

type peer struct {
	slot uint16
	addr netip.Addr
}
