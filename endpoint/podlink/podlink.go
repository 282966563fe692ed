// Package podlink makes the interface of a pod: a pair of devices, one in the
// pod's network namespace with its addresses and default routes, the other in
// the host's, ready for the datapath's programs.
package podlink

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// ErrIfNameTaken is wrapped by Create when the pod already has an interface of
// the requested name.
var ErrIfNameTaken = errors.New("interface name is taken in the pod")

// ErrNetNS is wrapped by Create and Check when the path is no network
// namespace, or is the host's own.
var ErrNetNS = errors.New("invalid network namespace")

// Kind is the type of the devices of a pod link.
type Kind string

// The kinds. Netkit devices run the datapath's program while the pod transmits (kernel 6.7, CONFIG_NETKIT).
const (
	Veth     Kind = "veth"
	Netkit   Kind = "netkit"    // layer 3: without MACs and neighbour discovery
	NetkitL2 Kind = "netkit-l2" // layer 2: Ethernet, as veth
)

// IsNetkit reports whether the devices are netkit devices.
func (k Kind) IsNetkit() bool { return k == Netkit || k == NetkitL2 }

// Device is the type that the kernel reports.
func (k Kind) Device() string {
	if k.IsNetkit() {
		return "netkit"
	}
	return "veth"
}

// Spec is all that is needed to make a pod's interface.
type Spec struct {
	Kind    Kind             // empty is Veth
	Name    string           // host side, at most 15 characters
	LinkMAC net.HardwareAddr // host side
	NetNS   string           // path of the pod's network namespace
	IfName  string           // pod side
	PodMAC  net.HardwareAddr // pod side
	MTU     int              // both sides, bytes of layer 3

	// RouteMTU is the MTU of the pod's default routes, not locked, so that path
	// MTU discovery goes on below it; 0: that of the link. It also bounds the MSS
	// that the pod announces.
	RouteMTU int

	// IPv4 and IPv6 are the pod's addresses, invalid for a family that is off;
	// each one that is valid has a gateway.
	IPv4, IPv6         netip.Addr
	Gateway4, Gateway6 netip.Addr
}

// Result tells what the kernel chose.
type Result struct {
	Index int // of the host side
	// NetnsCookie is the kernel's number for the pod's network namespace; 0: the
	// kernel doesn't tell (before 5.14).
	NetnsCookie uint64
}

// Host is what the kernel knows about the host side of a pod link.
type Host struct {
	Kind  Kind
	Index int
	MAC   net.HardwareAddr
	MTU   int
}

// Driver makes pod links. Implementations are safe for concurrent
// use.
type Driver interface {
	// Create makes the pair and configures both sides; both are up when it
	// returns. On error nothing of it is left.
	Create(spec Spec) (Result, error)

	// Delete removes the pair by the name of its host side. A link that does not
	// exist is no error.
	Delete(name string) error

	// Find returns the host side of a pod link, and false when there is none.
	Find(name string) (Host, bool, error)

	// Check compares the pair with spec and returns the first difference.
	Check(spec Spec) error

	// Watch calls gone with the index of every device that vanishes from the
	// host, one after the other, and resync when events may have been missed and
	// once at the start. It returns when ctx ends, or with an error when the
	// kernel's events can't be had.
	Watch(ctx context.Context, gone func(index int), resync func()) error
}
