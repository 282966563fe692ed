package encryption

import (
	"errors"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"myelin/agent/feature"
	"myelin/doctor/check"
)

// metrics are those of the device that packets take when no key is rotated.
func (f *Feature) metrics(s feature.Sink) {
	if !f.Config.Encryption.Enabled {
		return
	}
	d, err := f.encryption.control.Device(DeviceName)
	if err != nil {
		return
	}
	peers := map[string]int{"yes": 0, "no": 0}
	for i := range d.Peers {
		if session(&d.Peers[i], time.Time{}) {
			peers["yes"]++
		} else {
			peers["no"]++
		}
	}
	for has, n := range peers {
		s.Gauge("myelin_encryption_peers", "Nodes that packets are encrypted for, by whether there is a session.",
			float64(n), prometheus.Labels{"session": has})
	}
	_, _, inProcess := f.encryption.control.processes.of(DeviceName)
	s.Gauge("myelin_encryption_in_process", "Whether a process encrypts, as the kernel has no WireGuard.",
		number(inProcess), nil)
	_, rotates, _ := f.encryption.rotation()
	s.Gauge("myelin_encryption_rotating", "Whether this or another node changes its key.", number(rotates), nil)
	f.nodeMetrics(s)
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// checks are the doctor's checks of what encryption needs.
func checks() []check.Check {
	return []check.Check{
		{Area: "devices", Devices: true, Privileged: true, Run: checkKernel},
		{Area: "mtu", Devices: true, Run: checkMTU},
	}
}

// checkKernel tries to make devices of the kinds that encrypt, and tells what does where the kernel has no WireGuard.
func checkKernel(m *check.Machine) {
	attrs := netlink.LinkAttrs{Name: "probe"}
	if !m.Config.Encryption.Enabled {
		m.Kind(&netlink.Wireguard{LinkAttrs: attrs}, check.Info, "encryption will need it")
		m.Kind(&netlink.Xfrmi{LinkAttrs: attrs, Ifid: 1}, check.Info, "IPsec will need it")
		return
	}
	if m.Config.Encryption.UsesIPsec() {
		m.Kind(&netlink.Xfrmi{LinkAttrs: attrs, Ifid: 1}, check.Fail, "IPsec needs it")
		return
	}
	m.Kind(&netlink.Wireguard{LinkAttrs: attrs}, check.Warn,
		"a process encrypts instead, with less throughput")
	if _, err := os.Stat("/dev/net/tun"); errors.Is(err, os.ErrNotExist) {
		m.Warn("there is no /dev/net/tun", "a process can't encrypt where the kernel has no WireGuard",
			"load the module tun")
	}
}
