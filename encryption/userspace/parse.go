package userspace

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// parseDevice reads what a process says of its device. Lines that are not known are left out.
func parseDevice(lines []line) (*wgtypes.Device, error) {
	d := new(wgtypes.Device)
	for _, l := range lines {
		var err error
		switch {
		case l.key == "private_key":
			if d.PrivateKey, err = parseKey(l.value); err == nil {
				d.PublicKey = d.PrivateKey.PublicKey()
			}
		case l.key == "listen_port":
			d.ListenPort, err = strconv.Atoi(l.value)
		case l.key == "public_key":
			d.Peers = append(d.Peers, wgtypes.Peer{})
			d.Peers[len(d.Peers)-1].PublicKey, err = parseKey(l.value)
		case len(d.Peers) > 0:
			err = parsePeer(&d.Peers[len(d.Peers)-1], l)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.key, err)
		}
	}
	for i := range d.Peers {
		if p := &d.Peers[i]; p.LastHandshakeTime.Equal(time.Unix(0, 0)) {
			p.LastHandshakeTime = time.Time{} // never
		}
	}
	return d, nil
}

// parseAbout reads what a process says of itself. One of an earlier version does not have all.
func parseAbout(lines []line) (about About, err error) {
	for _, l := range lines {
		switch l.key {
		case "version":
			about.Version = l.value
		case "started":
			var nanos int64
			nanos, err = strconv.ParseInt(l.value, 10, 64)
			about.Started = time.Unix(0, nanos)
		case "memory":
			about.Memory, err = strconv.ParseUint(l.value, 10, 64)
		}
		if err != nil {
			return about, fmt.Errorf("%s: %w", l.key, err)
		}
	}
	return about, nil
}

func parsePeer(p *wgtypes.Peer, l line) error {
	switch l.key {
	case "endpoint":
		at, err := netip.ParseAddrPort(l.value)
		if err == nil {
			p.Endpoint = net.UDPAddrFromAddrPort(at)
		}
		return err
	case "allowed_ip":
		prefix, err := netip.ParsePrefix(l.value)
		if err == nil {
			p.AllowedIPs = append(p.AllowedIPs, net.IPNet{IP: prefix.Addr().AsSlice(),
				Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())})
		}
		return err
	case "last_handshake_time_sec", "last_handshake_time_nsec", "rx_bytes", "tx_bytes",
		"persistent_keepalive_interval":
		n, err := strconv.ParseInt(l.value, 10, 64)
		if err == nil {
			setNumber(p, l.key, n)
		}
		return err
	}
	return nil
}

func setNumber(p *wgtypes.Peer, key string, n int64) {
	switch key {
	case "last_handshake_time_sec":
		p.LastHandshakeTime = time.Unix(n, 0)
	case "last_handshake_time_nsec": // comes after the seconds
		p.LastHandshakeTime = p.LastHandshakeTime.Add(time.Duration(n))
	case "rx_bytes":
		p.ReceiveBytes = n
	case "tx_bytes":
		p.TransmitBytes = n
	case "persistent_keepalive_interval":
		p.PersistentKeepaliveInterval = time.Duration(n) * time.Second
	}
}

func parseKey(text string) (k wgtypes.Key, err error) {
	b, err := hex.DecodeString(text)
	if err == nil && len(b) != len(k) {
		err = fmt.Errorf("%d bytes", len(b))
	}
	if err != nil {
		return k, fmt.Errorf("no key: %w", err)
	}
	return wgtypes.Key(b), nil
}
