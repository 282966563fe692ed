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
// them first, and loses packets meanwhile, so that only what differs is changed. What a change of one peer costs does
// not depend on the others, but for reading the device, once in readAgain.
type allowed struct {
	owner map[netip.Prefix]wgtypes.Key
	list  map[wgtypes.Key]map[netip.Prefix]bool // the prefixes of each owner
	of    string                                // the device that was read
	at    time.Time
}

// refresh reads the device that has a peer, unless that was done a moment ago.
func (a *allowed) refresh(c control, p *Peer) error {
	of := instanceOf(p.Device, p.Instance)
	if a.of == of && time.Since(a.at) < readAgain {
		return nil
	}
	d, err := c.Device(p.On)
	if err != nil {
		return fmt.Errorf("read peers: %w", err)
	}
	a.owner, a.list = map[netip.Prefix]wgtypes.Key{}, map[wgtypes.Key]map[netip.Prefix]bool{}
	a.of, a.at = of, time.Now()
	for i := range d.Peers {
		a.set(d.Peers[i].PublicKey, d.Peers[i].AllowedIPs)
	}
	return nil
}

// instanceOf names a device until it is made anew.
func instanceOf(index int, process string) string { return strconv.Itoa(index) + " " + process }

// set notes that a peer has got allowed IPs, which another one loses by that.
func (a *allowed) set(key wgtypes.Key, list []net.IPNet) {
	for _, ip := range list {
		p := prefixOf(ip)
		if owner, ok := a.owner[p]; ok {
			delete(a.list[owner], p)
		}
		a.owner[p] = key
		if a.list[key] == nil {
			a.list[key] = map[netip.Prefix]bool{}
		}
		a.list[key][p] = true
	}
}

// has reports whether a peer has allowed IPs.
func (a *allowed) has(key wgtypes.Key) bool { return len(a.list[key]) > 0 }

// remove notes that a peer was removed.
func (a *allowed) remove(key wgtypes.Key) {
	for p := range a.list[key] {
		delete(a.owner, p)
	}
	delete(a.list, key)
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
	for p := range a.list[c.PublicKey] {
		if !wanted[p] {
			delete(a.owner, p)
			delete(a.list[c.PublicKey], p)
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
