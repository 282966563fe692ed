package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb/reconciler"

	"myelin/cluster"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that Services have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return strconv.Itoa(int(p))
}

// protocolOf is the protocol of a name that package cluster has validated.
func protocolOf(name string) Protocol {
	switch name {
	case "UDP":
		return UDP
	case "SCTP":
		return SCTP
	}
	return TCP
}

// L4Addr is an address, a port and a protocol.
type L4Addr struct {
	netip.AddrPort
	Protocol Protocol
}

// L4 makes an L4Addr.
func L4(addr netip.Addr, port uint16, proto Protocol) L4Addr {
	return L4Addr{netip.AddrPortFrom(addr, port), proto}
}

// String is "10.0.0.1:80/TCP".
func (a L4Addr) String() string { return a.AddrPort.String() + "/" + a.Protocol.String() }

// MarshalText is String; without it, AddrPort's would omit the protocol.
func (a L4Addr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText is ParseL4.
func (a *L4Addr) UnmarshalText(text []byte) (err error) {
	*a, err = ParseL4(string(text))
	return err
}

// ParseL4 parses the format of String: "10.0.0.1:80/TCP", "[fd00::1]:53/UDP". The default protocol is TCP. A zone, an
// IPv4-mapped address and port 0 are errors.
func ParseL4(text string) (L4Addr, error) {
	addr, name, hasProtocol := strings.Cut(text, "/")
	at, err := netip.ParseAddrPort(addr)
	proto := TCP
	if hasProtocol {
		proto = protocolOf(strings.ToUpper(name))
	}
	switch {
	case err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6():
		return L4Addr{}, fmt.Errorf("%q is not an address and port such as 192.0.2.1:80/TCP or [2001:db8::1]:53/UDP",
			text)
	case at.Port() == 0:
		return L4Addr{}, fmt.Errorf("%q: the port is not in 1..65535", text)
	case hasProtocol && !strings.EqualFold(name, proto.String()):
		return L4Addr{}, fmt.Errorf("%q: %q is none of TCP, UDP, SCTP", text, name)
	}
	return L4Addr{at, proto}, nil
}

// Compare orders by address, port, protocol.
func (a L4Addr) Compare(o L4Addr) int {
	return cmp.Or(a.AddrPort.Compare(o.AddrPort), cmp.Compare(a.Protocol, o.Protocol))
}

// Key is the address, port and protocol as bytes. An IPv4 address is IPv4-mapped, as in the datapath.
func (a L4Addr) Key() []byte {
	addr := a.Addr().As16()
	return append(append(make([]byte, 0, 19), addr[:]...), byte(a.Port()>>8), byte(a.Port()), byte(a.Protocol))
}

// AnyAddress is the address of frontends on every address of the node, of one family.
func AnyAddress(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Frontend is an address, port and protocol by which clients reach a Service.
type Frontend struct {
	// Address is 0.0.0.0 or :: for any address of the node of that family. Frontends with an address of their own take
	// precedence over these.
	Address   netip.AddrPort `json:"address"`
	Protocol  Protocol       `json:"protocol"`
	ServiceID uint32         `json:"serviceID"`
	Service   cluster.Key    `json:"service"`
	PortName  string         `json:"portName,omitempty"`
	Type      Type           `json:"type"`
	// Scopes are where the frontend exists. In others the address has no meaning.
	Scopes Scope `json:"scopes"`
	// Elsewhere are the scopes whose set is empty only because of the traffic policy: other nodes have backends, so
	// packets are dropped and not rejected.
	Elsewhere Scope `json:"elsewhere,omitempty"`
	// Affinity is the Service's.
	Affinity time.Duration `json:"affinity,omitempty"`
	// ThisNode says that if Address is any address of the node, it does not include those of other nodes, which have
	// sets of their own.
	ThisNode bool `json:"thisNode,omitempty"`
	// Restricted says that source ranges are checked for external clients. SourceRanges and SourceDeny are the
	// Service's.
	Restricted   bool           `json:"restricted,omitempty"`
	SourceDeny   bool           `json:"sourceDeny,omitempty"`
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	// Algorithm selects the backend for a new flow. It is never empty.
	Algorithm Algorithm `json:"algorithm,omitempty"`
	// Forwarding is the Service's.
	Forwarding Forwarding `json:"forwarding,omitempty"`
	// ServerIDLength is the length of server IDs in QUIC connection IDs, in octets; 0: they select no backends. Servers
	// are the backends by server ID, sorted, also those that get no new flows.
	ServerIDLength uint8    `json:"serverIDLength,omitempty"`
	Servers        []Server `json:"servers,omitempty"`
	// Local are the scopes with the traffic policy Local: connection IDs select only backends of this node there.
	Local Scope `json:"local,omitempty"`
	// External and Internal are the backends for new flows of each scope. From one row to the next, backends keep their
	// places, so that little has to be written. Frontends with the same set share its memory.
	External []BackendRef      `json:"external,omitempty"`
	Internal []BackendRef      `json:"internal,omitempty"`
	Status   reconciler.Status `json:"status"`
}

// BackendRef is a backend in a set.
type BackendRef struct {
	ID uint32 `json:"id"`
	// Weight is 1..65535, relative to the others of the set.
	Weight uint16 `json:"weight"`
}

// L4 is the frontend's address, port and protocol.
func (f *Frontend) L4() L4Addr { return L4Addr{f.Address, f.Protocol} }

// Equal reports whether two rows are the same, except for their status.
func (f *Frontend) Equal(o *Frontend) bool {
	return f.Address == o.Address && f.Protocol == o.Protocol && f.ServiceID == o.ServiceID && f.Service == o.Service &&
		f.PortName == o.PortName && f.Type == o.Type && f.Scopes == o.Scopes && f.Elsewhere == o.Elsewhere &&
		f.Affinity == o.Affinity && f.ThisNode == o.ThisNode && f.Restricted == o.Restricted &&
		f.SourceDeny == o.SourceDeny && slices.Equal(f.SourceRanges, o.SourceRanges) &&
		f.Algorithm == o.Algorithm && f.Forwarding == o.Forwarding && f.ServerIDLength == o.ServerIDLength &&
		slices.Equal(f.Servers, o.Servers) && f.Local == o.Local &&
		SameRefs(f.External, o.External) && SameRefs(f.Internal, o.Internal)
}

// SameRefs reports whether two sets are the same. Those that share memory are.
func SameRefs(a, b []BackendRef) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// TableHeader names the columns of TableRow.
func (*Frontend) TableHeader() []string {
	return []string{"Frontend", "Type", "Service", "Port", "Internal", "External"}
}

// TableRow is the row as text.
func (f *Frontend) TableRow() []string {
	return []string{
		f.L4().String(), f.Type.String(), f.Service.String(), f.PortName,
		f.set(Internal, f.Internal), f.set(External, f.External),
	}
}

// set is a set as text: "-" if the frontend is not in the scope, or what happens to packets if there is no backend.
func (f *Frontend) set(scope Scope, refs []BackendRef) string {
	switch {
	case f.Scopes&scope == 0:
		return "-"
	case len(refs) == 0 && f.Elsewhere&scope != 0:
		return "drop"
	case len(refs) == 0:
		return "reject"
	}
	parts := make([]string, len(refs))
	for i, r := range refs {
		parts[i] = strconv.FormatUint(uint64(r.ID), 10)
		if r.Weight != DefaultWeight {
			parts[i] += fmt.Sprintf("(%d)", r.Weight)
		}
	}
	return strings.Join(parts, ",")
}

// FrontendStatus is the address of a row's status, as table.Register wants it.
func FrontendStatus(f *Frontend) *reconciler.Status { return &f.Status }
