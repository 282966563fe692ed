package compile

import (
	"net/netip"
	"strconv"

	"myelin/cluster"
	"myelin/policy"
)

// namedPort is a port's name that rules of egress use. Which number it is, the
// pod says that a flow goes to: so for each number there is an address set of
// the pods that say so, and a peer's identity tells.
type namedPort struct {
	portName
	sets  map[PortBinding]*addressSet
	users map[*rule]struct{}
}

// PortBinding is the port that an address set stands for.
type PortBinding struct {
	portName
	number uint16
}

// bindings are those of the port sets that a peer is in.
func (d *Identity) bindings() (out []*addressSet) {
	for _, m := range d.members {
		if m.binding.name != "" {
			out = append(out, m)
		}
	}
	return out
}

// resolved are an entry's ports, with those that have names here.
func (e *entry) resolved(bound []*addressSet) []PortPrefix {
	out := e.ports[:len(e.ports):len(e.ports)]
	for _, n := range e.names {
		for _, b := range bound {
			if b.binding.matches(n) {
				out = append(out, PortPrefix{b.binding.number, b.binding.proto, 16})
			}
		}
	}
	return out
}

func (b PortBinding) matches(n portName) bool {
	return b.name == n.name && (n.proto == policy.ProtoAny || n.proto == b.proto)
}

// ProtoOf is the number of a protocol as cluster names it.
func ProtoOf(name string) uint8 {
	switch name {
	case "UDP":
		return policy.ProtoUDP
	case "SCTP":
		return policy.ProtoSCTP
	}
	return policy.ProtoTCP
}

// PortBindings are a pod's ports that have names.
func PortBindings(ports []cluster.Port) (out []PortBinding) {
	for _, p := range ports {
		if p.Name != "" {
			out = append(out, PortBinding{portName{p.Name, ProtoOf(p.Protocol)}, p.Number})
		}
	}
	return out
}

// key is that of the binding's address set.
func (b PortBinding) key() string {
	return "port " + b.name + " " + strconv.Itoa(int(b.proto)) + " " + strconv.Itoa(int(b.number))
}

// markPort says that a pod's address has a port of the name, or no longer.
func (c *Compiler) markPort(b PortBinding, a netip.Addr, on bool) {
	for name, n := range c.named {
		if !b.matches(name) {
			continue
		}
		set := c.space.bySet[b.key()]
		if set == nil {
			set = c.space.useSet(addressSource{key: b.key(), pods: true}, nil, func(*addressSet) {})
			set.binding = b
		}
		n.sets[b] = set
		c.space.mark(netip.PrefixFrom(a, a.BitLen()), set.id, false, on)
	}
}

// useName makes the addresses of pods that have a port of the name known.
func (c *Compiler) useName(name portName, r *rule) *namedPort {
	n := c.named[name]
	if n == nil {
		n = &namedPort{portName: name, sets: map[PortBinding]*addressSet{}, users: map[*rule]struct{}{}}
		c.named[name] = n
		for _, p := range c.pods {
			for _, b := range p.bindings {
				if b.matches(name) {
					for _, a := range p.addresses {
						c.markPort(b, a, true)
					}
				}
			}
		}
	}
	n.users[r] = struct{}{}
	return n
}

// releaseName undoes useName.
func (c *Compiler) releaseName(n *namedPort, r *rule) {
	delete(n.users, r)
	if len(n.users) > 0 {
		return
	}
	delete(c.named, n.portName)
	for _, p := range c.pods {
		for _, b := range p.bindings {
			if set := c.space.bySet[b.key()]; set != nil && b.matches(n.portName) && !c.nameUsed(b) {
				for _, a := range p.addresses {
					c.space.mark(netip.PrefixFrom(a, a.BitLen()), set.id, false, false)
				}
			}
		}
	}
	for _, set := range n.sets {
		if !c.nameUsed(set.binding) {
			delete(c.space.sets, set.id)
			delete(c.space.bySet, set.source.key)
		}
	}
}

func (c *Compiler) nameUsed(b PortBinding) bool {
	for name := range c.named {
		if b.matches(name) {
			return true
		}
	}
	return false
}
