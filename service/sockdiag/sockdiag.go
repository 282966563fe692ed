// Package sockdiag finds connected UDP sockets of a network namespace and ends
// them, by the kernel's socket diagnosis over netlink (sock_diag(7)).
//
//go:generate sh generate.sh
package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// connected is the state of UDP sockets that have a peer: TCP_ESTABLISHED of linux/tcp_states.h.
const connected = 1

// id is struct inet_diag_sockid of linux/inet_diag.h.
type id struct {
	SourcePort, DestinationPort [2]byte
	Source, Destination         [16]byte // IPv4: the first four bytes
	Interface                   uint32
	Cookie                      [2]uint32 // low half first
}

// request is struct inet_diag_req_v2.
type request struct {
	Family, Protocol, Extensions, Pad uint8
	States                            uint32
	ID                                id
}

// answer is struct inet_diag_msg.
type answer struct {
	Family, State, Timer, Retransmits          uint8
	ID                                         id
	Expires, ReadQueue, WriteQueue, UID, Inode uint32
}

// Len implements nl.NetlinkRequestData.
func (r *request) Len() int { return binary.Size(r) }

// Serialize implements nl.NetlinkRequestData.
func (r *request) Serialize() []byte {
	data, err := binary.Append(nil, binary.NativeEndian, r)
	if err != nil {
		panic(err) // only for types without a size
	}
	return data
}

// Socket is a UDP socket that has a peer.
type Socket struct {
	family uint8
	id     id
}

// Cookie is the value of SO_COOKIE and bpf_get_socket_cookie, which is unique until the machine is rebooted.
func (s Socket) Cookie() uint64 { return uint64(s.id.Cookie[1])<<32 | uint64(s.id.Cookie[0]) }

// Peer is the address that the socket is connected to. An IPv4 address is not IPv4-mapped, also if the socket is IPv6.
func (s Socket) Peer() netip.AddrPort {
	addr := netip.AddrFrom16(s.id.Destination).Unmap()
	if s.family == unix.AF_INET {
		addr = netip.AddrFrom4([4]byte(s.id.Destination[:4]))
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(s.id.DestinationPort[:]))
}

// Namespace is an open network namespace.
type Namespace struct{ sockets map[int]*nl.SocketHandle }

// Open opens the network namespace at a path, such as /run/netns/NAME; with "", that of the calling thread. Errors wrap
// os.ErrNotExist if there is nothing at the path. It requires CAP_NET_ADMIN in the namespace, and CAP_SYS_ADMIN to
// enter another one.
func Open(path string) (*Namespace, error) {
	at := netns.None()
	if path != "" {
		var err error
		if at, err = netns.GetFromPath(path); err != nil {
			return nil, fmt.Errorf("open network namespace: %w", err)
		}
		defer at.Close()
	}
	s, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open socket diagnosis of network namespace %q: %w", path, err)
	}
	return &Namespace{sockets: map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: {Socket: s}}}, nil
}

// Close releases what Open acquired.
func (n *Namespace) Close() error { return n.sockets[unix.NETLINK_INET_DIAG].Socket.Close() }

func (n *Namespace) request(command, flags int, r *request) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(command, flags)
	req.Sockets = n.sockets
	req.AddData(r)
	return req
}

// Connected lists the UDP sockets of both families that have a peer. For each family, the kernel walks all its UDP
// sockets. It requires CONFIG_INET_UDP_DIAG.
func (n *Namespace) Connected() ([]Socket, error) {
	var list []Socket
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		var bad error
		filter := &request{Family: family, Protocol: unix.IPPROTO_UDP, States: 1 << connected}
		req := n.request(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, filter)
		err := req.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(msg []byte) bool {
			var a answer
			_, bad = binary.Decode(msg, binary.NativeEndian, &a)
			list = append(list, Socket{family: a.Family, id: a.ID})
			return bad == nil
		})
		if err = errors.Join(err, bad); err != nil {
			return nil, fmt.Errorf("list UDP sockets: %w", err)
		}
	}
	return list, nil
}

// Destroy ends a socket. It has no peer any more: reading gives ECONNABORTED, writing EDESTADDRREQ. Errors wrap ENOENT
// if the socket does not exist any more, and EOPNOTSUPP if the kernel lacks CONFIG_INET_DIAG_DESTROY.
func (n *Namespace) Destroy(s Socket) error {
	req := n.request(nl.SOCK_DESTROY, unix.NLM_F_ACK, &request{Family: s.family, Protocol: unix.IPPROTO_UDP, ID: s.id})
	if _, err := req.Execute(unix.NETLINK_INET_DIAG, 0); err != nil {
		return fmt.Errorf("end UDP socket to %s: %w", s.Peer(), err)
	}
	return nil
}

// Probe returns nil if sockets can be listed and ended, and otherwise why not. It tries with a socket of its own, on
// loopback.
func Probe() error {
	own, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		own, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv6loopback})
	}
	if err != nil {
		return fmt.Errorf("try to end a socket: %w", err)
	}
	defer own.Close()
	victim, err := net.DialUDP("udp", nil, own.LocalAddr().(*net.UDPAddr))
	if err != nil {
		return fmt.Errorf("try to end a socket: %w", err)
	}
	defer victim.Close()
	n, err := Open("")
	if err != nil {
		return err
	}
	defer n.Close()
	return n.try(victim)
}

// try ends a socket of ours.
func (n *Namespace) try(c *net.UDPConn) error {
	cookie, err := cookieOf(c)
	if err != nil {
		return err
	}
	list, err := n.Connected()
	if errors.Is(err, unix.ENOENT) {
		return errors.New("the kernel doesn't list UDP sockets (CONFIG_INET_UDP_DIAG)")
	}
	if err != nil {
		return err
	}
	for _, s := range list {
		if s.Cookie() != cookie {
			continue
		}
		if err := n.Destroy(s); errors.Is(err, unix.EOPNOTSUPP) {
			return errors.New("the kernel ends no socket for others (CONFIG_INET_DIAG_DESTROY)")
		} else if err != nil {
			return err
		}
		return nil
	}
	return errors.New("try to end a socket: it is not in the kernel's list")
}

// cookieOf is the cookie of a socket of this process.
func cookieOf(c *net.UDPConn) (cookie uint64, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	if err = errors.Join(failed, err); err != nil {
		return 0, fmt.Errorf("ask for a socket's cookie: %w", err)
	}
	return cookie, nil
}
