package encryption

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// readAgain is how long what was read of the device counts: other programs may change it.
const readAgain = time.Second

// allowed is which peer of the device has a prefix among its allowed IPs. To replace the allowed IPs of a peer removes
// them first, and loses packets meanwhile, so that only what differs is changed.
type allowed struct {
	owner map[netip.Prefix]wgtypes.Key
	of    string // the device that was read
	at    time.Time
}

// refresh reads the device that has a peer, unless that was done a moment ago.
func (a *allowed) refresh(c control, p *Peer) error {
	of := strconv.Itoa(p.Device) + " " + p.Instance
	if a.of == of && time.Since(a.at) < readAgain {
		return nil
	}
	d, err := c.Device(p.On)
	if err != nil {
		return fmt.Errorf("read peers: %w", err)
	}
	a.owner, a.of, a.at = map[netip.Prefix]wgtypes.Key{}, of, time.Now()
	for i := range d.Peers {
		a.set(d.Peers[i].PublicKey, d.Peers[i].AllowedIPs)
	}
	return nil
}

func (a *allowed) set(key wgtypes.Key, list []net.IPNet) {
	for _, ip := range list {
		a.owner[prefixOf(ip)] = key
	}
}

// reduce leaves of a change to a peer the allowed IPs that it does not have. One that it has too many makes the whole
// list be replaced.
func (a *allowed) reduce(c *wgtypes.PeerConfig) {
	wanted := map[netip.Prefix]bool{}
	var lacking []net.IPNet
	for _, ip := range c.AllowedIPs {
		wanted[prefixOf(ip)] = true
		if owner, ok := a.owner[prefixOf(ip)]; !ok || owner != c.PublicKey {
			lacking = append(lacking, ip)
		}
	}
	for p, owner := range a.owner {
		if owner == c.PublicKey && !wanted[p] {
			delete(a.owner, p)
			lacking = c.AllowedIPs
			c.ReplaceAllowedIPs = true
		}
	}
	c.AllowedIPs = lacking
}

func (a *allowed) forget() { a.of = "" }

func prefixOf(ip net.IPNet) netip.Prefix {
	addr, _ := netip.AddrFromSlice(ip.IP)
	bits, _ := ip.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
