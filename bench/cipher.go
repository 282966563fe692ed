package bench

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Cipher is what encrypts between nodes, by the value of encryption.type.
type Cipher string

// The ciphers.
const (
	WireGuard Cipher = "wireguard"
	IPsec     Cipher = "ipsec"
)

// overhead is by how many bytes the MTU of pods is below that of wires with encryption.
const overhead = 80

// cryptDevice is the name of the device that encrypts.
const cryptDevice = "crypt0"

// encrypt makes a device on both nodes of a kernelPath that encrypts what is sent by it, as the agents' device does:
// with the same MTU, and IPv4 outside.
func (k *kernelPath) encrypt(ctx context.Context, with Cipher) error {
	mtu := cmp.Or(k.mtu, 1500) - overhead
	kind := "wireguard"
	if with == IPsec {
		kind = fmt.Sprintf("xfrm if_id %d", interfaceID)
	}
	for _, node := range []string{"a", "b"} {
		if err := ip(ctx, fmt.Sprintf("-n %s%s link add %s mtu %d type %s", k.prefix, node, cryptDevice, mtu, kind),
			fmt.Sprintf("-n %s%s link set %s addrgenmode none", k.prefix, node, cryptDevice)); err != nil {
			return err
		}
	}
	set := k.wireGuard
	if with == IPsec {
		set = k.ipsec
	}
	if err := set(ctx); err != nil {
		return err
	}
	return ip(ctx, fmt.Sprintf("-n %sa link set %s up", k.prefix, cryptDevice),
		fmt.Sprintf("-n %sb link set %s up", k.prefix, cryptDevice))
}

// wirePort is that of WireGuard's own packets.
const wirePort = 51871

// wireGuard makes the nodes peers that take any packet from each other.
func (k *kernelPath) wireGuard(context.Context) error {
	var keys [2]wgtypes.Key
	for i := range keys {
		var err error
		if keys[i], err = wgtypes.GeneratePrivateKey(); err != nil {
			return err
		}
	}
	port, at := wirePort, IPv4.addressing()
	for i, node := range []string{"a", "b"} {
		peer := wgtypes.PeerConfig{PublicKey: keys[1-i].PublicKey(), AllowedIPs: everything(),
			Endpoint: &net.UDPAddr{IP: net.ParseIP(at.wire[1-i]), Port: port}}
		err := inNetns(k.prefix+node, func() error {
			client, err := wgctrl.New()
			if err != nil {
				return err
			}
			defer client.Close()
			return client.ConfigureDevice(cryptDevice, wgtypes.Config{PrivateKey: &keys[i], ListenPort: &port,
				Peers: []wgtypes.PeerConfig{peer}})
		})
		if err != nil {
			return fmt.Errorf("set up WireGuard on node %s: %w", node, err)
		}
	}
	return nil
}

func everything() []net.IPNet {
	return []net.IPNet{{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}
}

// Those of all states and policies; aeadKey is as long as a key with salt for AES-128 in GCM.
const (
	interfaceID = 1
	aeadKey     = 20
)

// ipsec makes states in tunnel mode for both directions on both nodes, as package ipsec makes them, and policies for
// all packets.
func (k *kernelPath) ipsec(ctx context.Context) error {
	at := IPv4.addressing()
	var states [2]string
	for i := range states {
		key := make([]byte, aeadKey)
		if _, err := rand.Read(key); err != nil {
			return err
		}
		states[i] = fmt.Sprintf("xfrm state add src %s dst %s proto esp spi %d reqid %d mode tunnel aead "+
			"rfc4106(gcm(aes)) 0x%s 128 replay-window 4096 flag af-unspec esn if_id %d", at.wire[i], at.wire[1-i],
			0x1000+i, interfaceID, hex.EncodeToString(key), interfaceID)
	}
	for i, node := range []string{"a", "b"} {
		commands := states[:]
		for _, all := range []string{"0.0.0.0/0", "::/0"} {
			for dir, from := range map[string]int{"out": i, "in": 1 - i} {
				commands = append(commands, fmt.Sprintf("xfrm policy add src %s dst %s dir %s if_id %d tmpl src %s "+
					"dst %s proto esp reqid %d mode tunnel", all, all, dir, interfaceID, at.wire[from],
					at.wire[1-from], interfaceID))
			}
		}
		for _, command := range commands {
			if err := patiently(ctx, fmt.Sprintf("-n %s%s %s", k.prefix, node, command)); err != nil {
				return err
			}
		}
	}
	return nil
}

// patiently is ip, repeated: the kernel waits for modules of ciphers for a minute, which may pass at once in virtual
// time.
func patiently(ctx context.Context, command string) (err error) {
	const times = 10
	for range times {
		if err = ip(ctx, command); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Second)
	}
	return err
}
