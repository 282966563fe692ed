package labtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"myelin/bpf"
	"myelin/status"
)

// bandwidthModes are ways in which packets with a departure time leave a node.
func bandwidthModes(t *testing.T) []mode {
	var list []mode
	for _, name := range []string{"native", "native-flows", "legacy", "vxlan"} {
		m := modeNamed(name)
		m.values = maps.Clone(m.values)
		list = append(list, m)
	}
	list = append(list, encryptionModes(wireGuard())[0], encryptionModes(byIPsec(t))[0])
	list[4].name, list[5].name = "wireguard", "ipsec"
	netkit := modeNamed("native")
	netkit.name, netkit.values = "netkit", maps.Clone(netkit.values)
	netkit.values["bpf.datapathMode"] = "netkit"
	list = append(list, netkit)
	for _, m := range list {
		m.values["bandwidthManager.enabled"] = true
	}
	return list
}

// pacedMode is the mode with the bandwidth manager.
func pacedMode(name string) mode {
	m := modeNamed(name)
	m.values = maps.Clone(m.values)
	m.values["bandwidthManager.enabled"] = true
	return m
}

func noFq() string { return noType("type veth && tc qdisc add dev probe0 root fq") }

// TestBandwidth: what pods send to another node and what they receive stays within 2 % of their limits, which change
// while they run and send; pods beside have none. Sockets wait where the host's stack does not forward their packets,
// and none is dropped.
//
//	┌─ node1 ───────────────┐  ┌─ node2 ─────────────┐
//	│ a1 (egress)  b1       │  │ a2 (ingress)  b2    │
//	└──────┬────────────────┘  └───┬─────────────────┘
//	═══════╧═══════════════════════╧═════════════════
func TestBandwidth(t *testing.T) {
	if why := noFq(); why != "" {
		t.Skip(why)
	}
	for _, m := range bandwidthModes(t) {
		t.Run(m.name, func(t *testing.T) {
			if why := noEncryption(m); why != "" {
				t.Skip(why)
			}
			if m.name == "netkit" {
				needsNetkit(t)
			}
			unlimited := 40e6
			if m.name == "ipsec" {
				unlimited = 25e6 // AES on an emulated CPU takes longer; limits are at most 20e6
			}
			c := up(t, setup{mode: m})
			c.says("BandwidthManager", status.OK, "EDT with BPF [")
			for _, f := range c.stack.families {
				c.limitsChange(f)
				if rate := c.rateTCP("b1", "b2", f); rate < unlimited {
					t.Errorf("IPv%d b1→b2: %.0f bit/s without a limit", f, rate)
				}
			}
			c.socketsWait("node1")
			if m.name == "native" || m.name == "netkit" {
				c.keepsLimits("node1", "a1")
			}
		})
	}
}

// limitsChange: what pods send and receive follows their limits, also while they send as much as they can.
func (c *cluster) limitsChange(family int) {
	c.t.Helper()
	c.limit("a1", map[string]string{"egress": "20M"})
	c.wantSegments("a1", segmentsAt(20e6)) // before connections are made
	tcp := c.loadTCP("a1", "a2", family, rateStreams)
	c.limitsHold(rateFor, limited{"a1", "a2", "TCP", family, 20e6})
	c.limit("a1", map[string]string{"egress": "4M"})
	c.limitsHold(rateFor, limited{"a1", "a2", "TCP", family, 4e6})
	tcp.stop()
	udp := c.loadUDP("a1", "a2", family, 1, udpBuffer)
	c.limitsHold(rateFor, limited{"a1", "a2", "UDP", family, 4e6})
	udp.stop()
	c.limit("a1", nil)
	c.limit("a2", map[string]string{"ingress": "5M"})
	tcp = c.loadTCP("b1", "a2", family, rateStreams)
	c.limitsHold(rateFor, limited{"b1", "a2", "TCP", family, 5e6})
	tcp.stop()
	udp = c.loadUDP("b1", "a2", family, 1, udpBuffer)
	c.limitsHold(rateFor, limited{"b1", "a2", "UDP", family, 5e6})
	udp.stop()
	c.limit("a2", nil)
}

// socketsWait: nothing is dropped of pods on a node whose sockets wait with their packets. With legacy routing, the
// host's stack separates packets from their sockets.
func (c *cluster) socketsWait(node string) {
	c.t.Helper()
	n := c.outcome(node, bpf.DatapathOutcomeDROP_BANDWIDTH)
	if legacy := c.mode.values["bpf.hostLegacyRouting"] == true; n > 0 && !legacy {
		c.t.Errorf("%d packets are dropped of sockets that wait", n)
	}
}

// keepsLimits: limits outlast an agent that is killed, and go with the feature, as do the qdiscs and small packets.
func (c *cluster) keepsLimits(node, pod string) {
	c.t.Helper()
	c.limit(pod, map[string]string{"egress": "20M", "ingress": "20M"})
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(2*time.Minute))
	defer cancel()
	n, fqs := c.Node(node), c.fqs(node)
	if fqs < 2 {
		c.t.Errorf("%d fq on %s, want those of eth0 and of a pod", fqs, node)
	}
	if err := errors.Join(n.KillAgent(ctx), n.StartAgent(ctx, nil)); err != nil {
		c.t.Fatal(err)
	}
	c.limit(pod, map[string]string{"egress": "20M", "ingress": "20M"})
	if now := c.fqs(node); now != fqs {
		c.t.Errorf("%d fq on %s after a restart, %d before", now, node, fqs)
	}
	c.wantSegments(pod, segmentsAt(20e6))
	err := errors.Join(n.StopAgent(ctx), n.StartAgent(ctx, map[string]any{"bandwidthManager.enabled": false}))
	if err != nil {
		c.t.Fatal(err)
	}
	c.says("BandwidthManager", status.Off, "off")
	eventually(c.t, "qdiscs are removed", 20*time.Second, func() error {
		if now := c.fqs(node); now != 0 {
			return fmt.Errorf("%d fq on %s", now, node)
		}
		return nil
	})
	c.wantSegments(pod, 65535)
}

// wantSegments waits until the pod's packets have so many segments at most.
func (c *cluster) wantSegments(pod string, want uint32) {
	c.t.Helper()
	eventually(c.t, "segments of packets of "+pod, 20*time.Second, func() error {
		return c.Pod(pod).Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err == nil && link.Attrs().GSOMaxSegs != want {
				err = fmt.Errorf("eth0 has %d, want %d", link.Attrs().GSOMaxSegs, want)
			}
			return err
		})
	})
}

// fqs counts a node's qdiscs of that kind.
func (c *cluster) fqs(node string) (n int) {
	c.t.Helper()
	err := c.Node(node).Do(func() error {
		list, err := netlink.QdiscList(nil)
		for _, q := range list {
			if q.Type() == "fq" {
				n++
			}
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// limit gives a pod's limits other values, and returns when they are in force.
func (c *cluster) limit(pod string, rates map[string]string) {
	c.t.Helper()
	var annotations, want []string
	for direction, rate := range rates {
		annotations = append(annotations, fmt.Sprintf("kubernetes.io/%s-bandwidth: %s", direction, rate))
		want = append(want, pod+" "+direction+" "+rate)
	}
	c.annotate(map[string]string{pod: strings.Join(annotations, ", ")})
	c.listsLimits(pod, want...)
}

// annotate gives pods other annotations, of YAML's flow style.
func (c *cluster) annotate(pods map[string]string) {
	c.t.Helper()
	var objects []string
	for pod, annotations := range pods {
		objects = append(objects, strings.Replace(podYAML(pod, nodeOf(pod)), "name: "+pod,
			"name: "+pod+", annotations: {"+annotations+"}", 1))
	}
	file := filepath.Join(c.t.TempDir(), "pods.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(objects, "---\n")), 0o644); err != nil {
		c.t.Fatal(err)
	}
	if err := c.Apply(c.t.Context(), file, false); err != nil {
		c.t.Fatal(err)
	}
}

// nodeOf is the number of a pod's node, the last letter of its name.
func nodeOf(pod string) int { return int(pod[len(pod)-1] - '0') }

// listsLimits waits until the pod's node lists rows that begin so, or none of the pod.
func (c *cluster) listsLimits(pod string, want ...string) {
	c.t.Helper()
	eventually(c.t, "limits of "+pod, 20*time.Second, func() error {
		out, err := c.cli(fmt.Sprintf("node%d", nodeOf(pod)), "bandwidth", "list")
		if err != nil {
			return err
		}
		words := strings.Join(strings.Fields(out), " ")
		for _, w := range want {
			if !strings.Contains(words, w) {
				return fmt.Errorf("want %s: %s", w, out)
			}
		}
		if strings.Contains(words, "Pending") || len(want) == 0 && strings.Contains(words, pod) {
			return errors.New(out)
		}
		return nil
	})
}
