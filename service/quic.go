package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// ServerIDAnnotation is the annotation of Services whose backends are selected by QUIC connection IDs. Its value is the
// length of the server IDs in them, in octets.
const ServerIDAnnotation = ownPrefix + "quic-server-id-length"

// MaxServerID is the largest length of a server ID, in octets.
const MaxServerID = 8

// Server is a backend by the server ID that QUIC connection IDs name it by, also one that gets no new flows.
type Server struct {
	// ID is the octets of the server ID as a number, the first one most significant.
	ID      uint64 `json:"id"`
	Backend uint32 `json:"backend"`
}

// plannedServer is a Server whose backend has no number yet.
type plannedServer struct {
	id uint64
	L4Addr
}

// ServerID returns the server ID of a backend, as a number: the given one, in hexadecimal digits, or if that is empty
// the last octets of the backend's address, of an IPv4 address in IPv4-mapped form.
func ServerID(given string, backend netip.Addr, octets uint8) (uint64, error) {
	if given != "" {
		id, err := strconv.ParseUint(given, 16, 64)
		if err != nil || len(given) != 2*int(octets) {
			return 0, fmt.Errorf("%q is not %d octets in hexadecimal digits", given, octets)
		}
		return id, nil
	}
	var id uint64
	addr := backend.As16()
	for _, b := range addr[len(addr)-int(octets):] {
		id = id<<8 | uint64(b)
	}
	return id, nil
}

// serverIDLength reads the value of ServerIDAnnotation; 0 after a problem.
func (b *builder) serverIDLength(w *annotations, value string) uint8 {
	n, err := strconv.ParseUint(value, 10, 8)
	switch {
	case err != nil || n < 1 || n > MaxServerID:
		w.problemAt(ServerIDAnnotation, "%q is not in 1..%d", value, MaxServerID)
	case !b.QUIC:
		w.problemAt(ServerIDAnnotation, "has no effect: myelin.quicConnectionIDs is false")
	default:
		return uint8(n)
	}
	return 0
}

// nameServers sets the server IDs of the UDP endpoints in all pools, and returns problems. An ID that two endpoints
// have names none of them.
func nameServers(pools map[port]*pool, octets uint8) (problems []string) {
	if octets == 0 {
		return nil
	}
	udp := false
	for at, p := range pools {
		if at.protocol == UDP {
			udp = true
			problems = append(problems, p.nameServers(octets)...)
		}
	}
	if !udp {
		problems = append(problems, fmt.Sprintf("metadata.annotations[%s]: the Service has no UDP port",
			ServerIDAnnotation))
	}
	slices.Sort(problems)
	return problems
}

func (p *pool) nameServers(octets uint8) (problems []string) {
	var all []plannedServer
	for i := range p.candidates {
		c := &p.candidates[i]
		id, err := ServerID(c.serverID, c.Addr(), octets)
		if err != nil {
			problems = append(problems, fmt.Sprintf("server ID of %s: %v", c.L4Addr, err))
			continue
		}
		all = append(all, plannedServer{id, c.L4Addr})
	}
	slices.SortFunc(all, func(a, b plannedServer) int { return cmp.Or(cmp.Compare(a.id, b.id), a.Compare(b.L4Addr)) })
	for first := 0; first < len(all); {
		next := first + 1
		for next < len(all) && all[next].id == all[first].id {
			next++
		}
		if next == first+1 {
			p.servers = append(p.servers, all[first])
		} else {
			problems = append(problems, fmt.Sprintf("%s and %s have one server ID, %0*x: it selects none of them",
				all[first].L4Addr, all[first+1].L4Addr, 2*octets, all[first].id))
		}
		first = next
	}
	return problems
}

// servers are the backends by server ID, with their numbers.
func (u *update) servers(planned []plannedServer) []Server {
	var out []Server
	for _, s := range planned {
		out = append(out, Server{ID: s.id, Backend: u.backendIDs.Get(s.L4Addr)})
	}
	return out
}
