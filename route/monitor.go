package route

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// routeKey is what makes two routes the same one to the kernel.
type routeKey struct {
	table  int
	prefix netip.Prefix
	metric uint32
}

// changes is what happened in the kernel since it was last asked for.
type changes struct {
	all       bool              // everything may have changed: events were lost, or this is the start
	links     map[int]bool      // links by index
	addresses map[int]bool      // links by index whose addresses changed
	defaults  bool              // any default route of the main table
	routes    map[routeKey]bool // routes of ours that were deleted or replaced, possibly by ourselves
}

func newChanges() changes {
	return changes{links: map[int]bool{}, addresses: map[int]bool{}, routes: map[routeKey]bool{}}
}

// monitor collects change notifications of the kernel.
type monitor struct {
	log       *slog.Logger
	namespace *netns.NsHandle
	buffer    int           // of the socket, bytes
	ready     chan struct{} // holds a token while there are changes

	mu      sync.Mutex
	pending changes
}

func newMonitor(log *slog.Logger, namespace *netns.NsHandle) *monitor {
	const buffer = 1 << 20 // some thousand messages
	return &monitor{
		log: log, namespace: namespace, buffer: buffer, ready: make(chan struct{}, 1), pending: newChanges(),
	}
}

// take returns the changes since the last call.
func (m *monitor) take() changes {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.pending
	m.pending = newChanges()
	return taken
}

func (m *monitor) note(add func(*changes)) {
	m.mu.Lock()
	add(&m.pending)
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// run subscribes and receives until ctx ends. A socket that overflows (ENOBUFS)
// or fails is replaced, and everything counts as changed.
func (m *monitor) run(ctx context.Context) {
	const pause = 100 * time.Millisecond
	for ctx.Err() == nil {
		err := m.receive(ctx)
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, unix.ENOBUFS) {
			m.log.Warn("netlink subscription ended, will resubscribe", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (m *monitor) receive(ctx context.Context) error {
	at := netns.None()
	if m.namespace != nil {
		at = *m.namespace
	}
	socket, err := nl.SubscribeAt(at, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { socket.Close() })
	defer func() {
		if stop() {
			socket.Close()
		}
	}()
	// A kernel that refuses a larger buffer only makes ENOBUFS more likely.
	_ = socket.SetReceiveBufferSize(m.buffer, true)
	m.note(func(c *changes) { c.all = true })
	for {
		messages, from, err := socket.Receive()
		if err != nil {
			return err
		}
		if from.Pid != nl.PidKernel {
			continue
		}
		m.note(func(c *changes) {
			for _, message := range messages {
				c.add(message.Header.Type, message.Header.Flags, message.Data)
			}
		})
	}
}

// add notes one message.
func (c *changes) add(kind, flags uint16, data []byte) {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) >= unix.SizeofIfInfomsg {
			c.links[int(nl.DeserializeIfInfomsg(data).Index)] = true
		}
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(data) >= unix.SizeofIfAddrmsg {
			c.addresses[int(nl.DeserializeIfAddrmsg(data).Index)] = true
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(data) < unix.SizeofRtMsg {
			return
		}
		message := nl.DeserializeRtMsg(data)
		if message.Dst_len == 0 && message.Table == unix.RT_TABLE_MAIN {
			c.defaults = true
		}
		ours := message.Protocol == Protocol
		if kind == unix.RTM_DELROUTE && ours || kind == unix.RTM_NEWROUTE && !ours && flags&unix.NLM_F_REPLACE != 0 {
			if key, ok := parseRouteKey(message, data[unix.SizeofRtMsg:]); ok {
				c.routes[key] = true
			}
		}
	}
}

func parseRouteKey(message *nl.RtMsg, data []byte) (key routeKey, ok bool) {
	attributes, err := nl.ParseRouteAttr(data)
	if err != nil {
		return key, false
	}
	key.table = int(message.Table)
	address := netip.IPv4Unspecified()
	if message.Family == unix.AF_INET6 {
		address = netip.IPv6Unspecified()
	}
	for _, a := range attributes {
		switch a.Attr.Type {
		case unix.RTA_DST:
			if address, ok = netip.AddrFromSlice(a.Value); !ok {
				return key, false
			}
		case unix.RTA_PRIORITY:
			key.metric = nl.NativeEndian().Uint32(a.Value)
		case unix.RTA_TABLE:
			key.table = int(nl.NativeEndian().Uint32(a.Value))
		}
	}
	key.prefix = netip.PrefixFrom(address, int(message.Dst_len))
	return key, key.prefix.IsValid()
}
