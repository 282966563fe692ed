package cluster

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// IPsecAnnotation is where nodes publish what other nodes derive the keys of IPsec from, on Nodes and CiliumNodes.
const IPsecAnnotation = "network.myelin.io/ipsec"

// IPsec is what a node publishes for IPsec. It is not secret.
type IPsec struct {
	// Epoch is a random number in hexadecimal, another one after each boot: keys are derived from it, so that no key is
	// used twice.
	Epoch string `json:"epoch"`
	// Key is the identifier of the newest key that the node can decrypt with, of MinIPsecKey to MaxIPsecKey.
	Key int `json:"key"`
}

// The identifiers of keys, as in Cilium.
const (
	MinIPsecKey = 1
	MaxIPsecKey = 15
)

// IPsecEpochSize is the number of random bytes of an epoch.
const IPsecEpochSize = 16

// String is the annotation: "EPOCH KEY".
func (i IPsec) String() string { return i.Epoch + " " + strconv.Itoa(i.Key) }

// parseIPsec reads what String has written.
func parseIPsec(text string) (IPsec, error) {
	epoch, key, _ := strings.Cut(text, " ")
	data, err := hex.DecodeString(epoch)
	if err != nil || len(data) != IPsecEpochSize || strings.ToLower(epoch) != epoch {
		return IPsec{}, fmt.Errorf("%q does not begin with %d bytes in hexadecimal", text, IPsecEpochSize)
	}
	id, err := strconv.Atoi(key)
	if err != nil || id < MinIPsecKey || id > MaxIPsecKey {
		return IPsec{}, fmt.Errorf("%q does not end with the identifier of a key, %d to %d", text, MinIPsecKey,
			MaxIPsecKey)
	}
	return IPsec{Epoch: epoch, Key: id}, nil
}

// ReadIPsec reads the annotation of another object than the Node, absent: the zero value; errors as FromNode's.
func ReadIPsec(annotations map[string]string) (IPsec, error) {
	var c checker
	read := c.ipsec(annotations)
	return read, c.err()
}

func (c *checker) ipsec(annotations map[string]string) IPsec {
	text := annotations[IPsecAnnotation]
	if text == "" {
		return IPsec{}
	}
	read, err := parseIPsec(text)
	if err != nil {
		c.add(fmt.Sprintf("metadata.annotations[%s]", IPsecAnnotation), "%s", err)
	}
	return read
}

// The types of encryption, as the key encryption.type has them.
const (
	WireGuardType = "wireguard"
	IPsecType     = "ipsec"
)

// Encrypts reports whether the node has published what encryption of that type needs; not for any other type.
func (n *Node) Encrypts(by string) bool {
	switch by {
	case WireGuardType:
		return n.WireGuardKey != ""
	case IPsecType:
		return n.IPsec.Epoch != ""
	}
	return false
}

// IPsecAddress is the address of a node that IPsec's outer packets are from and to: of the underlay's family.
func (n *Node) IPsecAddress(ipv6 bool) netip.Addr {
	if ipv6 {
		return n.IPv6()
	}
	return n.IPv4()
}
