package sockdiag

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of linux/inet_diag.h. The old request is the only one that lists the sockets of both families, in one walk through
// the kernel's table of connections.
const (
	tcpDiagGetSock = 18 // TCPDIAG_GETSOCK
	diagInfo       = 2  // INET_DIAG_INFO
)

// States of linux/tcp_states.h: listening, and those in which data may be under way.
const (
	stateListen = 10
	withData    = 1<<1 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11
)

// tcpRequest is struct inet_diag_req.
type tcpRequest struct {
	Family, SourceLength, DestinationLength, Extensions uint8
	ID                                                  id
	States, Tables                                      uint32
}

// Len implements nl.NetlinkRequestData.
func (r *tcpRequest) Len() int { return binary.Size(r) }

// Serialize implements nl.NetlinkRequestData.
func (r *tcpRequest) Serialize() []byte { return (*[unsafe.Sizeof(*r)]byte)(unsafe.Pointer(r))[:] }

// Connection is a TCP connection as the kernel of one end knows it. Counters are of packets, with
// retransmissions, and of payload without, since the connection began.
type Connection struct {
	Cookie        uint64 // SO_COOKIE
	Local, Remote netip.AddrPort
	// Accepted reports whether the remote end has opened the connection: the local port is listened on.
	Accepted       bool
	Sent, Received uint64 // packets; the kernel counts modulo 2^32
	SentBytes      uint64
	ReceivedBytes  uint64
}

// Connections lists the TCP connections of both families that are established or being closed. The kernel walks the
// connections of all namespaces: the cost is that of the machine, some 0.5 ms for a table of 2^18 slots. It requires
// CONFIG_INET_TCP_DIAG.
func (n *Namespace) Connections() ([]Connection, error) {
	var list []Connection
	listening := map[uint16]bool{}
	var bad error
	req := nl.NewNetlinkRequest(tcpDiagGetSock, unix.NLM_F_DUMP)
	req.Sockets = n.sockets
	req.AddData(&tcpRequest{Extensions: 1 << (diagInfo - 1), States: 1<<stateListen | withData})
	err := req.ExecuteIter(unix.NETLINK_INET_DIAG, tcpDiagGetSock, func(msg []byte) bool {
		var a answer
		if _, bad = binary.Decode(msg, binary.NativeEndian, &a); bad != nil {
			return false
		}
		if a.State == stateListen {
			listening[binary.BigEndian.Uint16(a.ID.SourcePort[:])] = true
			return true
		}
		c := a.connection()
		bad = c.fill(msg[binary.Size(a):])
		list = append(list, c)
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return nil, fmt.Errorf("list TCP connections: %w", err)
	}
	for i := range list {
		list[i].Accepted = listening[list[i].Local.Port()]
	}
	return list, nil
}

func (a *answer) connection() Connection {
	s := Socket{family: a.Family, id: a.ID}
	local := Socket{family: a.Family, id: id{Destination: a.ID.Source, DestinationPort: a.ID.SourcePort}}
	return Connection{Cookie: s.Cookie(), Local: local.Peer(), Remote: s.Peer()}
}

// fill reads struct tcp_info, of which older kernels have less.
func (c *Connection) fill(attributes []byte) error {
	list, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return fmt.Errorf("read attributes: %w", err)
	}
	for _, a := range list {
		if a.Attr.Type != diagInfo {
			continue
		}
		var info unix.TCPInfo
		copy((*[unsafe.Sizeof(info)]byte)(unsafe.Pointer(&info))[:], a.Value)
		c.Sent, c.Received = uint64(info.Segs_out), uint64(info.Segs_in)
		c.SentBytes, c.ReceivedBytes = info.Bytes_sent-info.Bytes_retrans, info.Bytes_received
	}
	return nil
}
