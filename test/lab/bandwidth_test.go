package labtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
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
	for _, m := range list {
		m.values["bandwidthManager.enabled"] = true
	}
	return list
}

func noFq() string { return noType("type veth && tc qdisc add dev probe0 root fq") }

// TestBandwidth: what pods send to another node and what they receive stays within 2 % of their limits, which change
// while they run; pods beside have none.
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
			unlimited := 40e6
			if m.name == "ipsec" {
				unlimited = 25e6 // AES on an emulated CPU takes longer; limits are at most 20e6
			}
			c := up(t, setup{mode: m})
			c.says("BandwidthManager", status.OK, "EDT with BPF [")
			for _, f := range c.stack.families {
				c.limit("a1", map[string]string{"egress": "20M"})
				c.wantRate("a1", "a2", f, 20e6, "TCP")
				c.limit("a1", map[string]string{"egress": "4M"})
				c.wantRate("a1", "a2", f, 4e6, "TCP", "UDP")
				c.limit("a1", nil)
				c.limit("a2", map[string]string{"ingress": "5M"})
				c.wantRate("b1", "a2", f, 5e6, "TCP", "UDP")
				c.limit("a2", nil)
				if rate := c.rateTCP("b1", "b2", f); rate < unlimited {
					t.Errorf("IPv%d b1→b2: %.0f bit/s without a limit", f, rate)
				}
			}
			if n := c.outcome("node1", bpf.DatapathOutcomeDROP_BANDWIDTH); n > 0 {
				t.Errorf("%d packets are dropped of sockets that wait", n)
			}
			if m.name == "native" {
				c.keepsLimits("node1", "a1")
			}
		})
	}
}

// keepsLimits: limits outlast an agent that is killed, and go with the feature, as do the qdiscs.
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

// wantRate measures protocols between pods; a VM sends few datagrams in a second. Where a processor is wanting, less is
// sent, and what was received waits beyond the end of a span for the process that counts it: it is measured again.
func (c *cluster) wantRate(from, to string, family int, want float64, protocols ...string) {
	c.t.Helper()
	const exact, tries = 0.02, 6
	measures := map[string]func(string, string, int) float64{"TCP": c.rateTCP, "UDP": c.rateUDP}
	for _, proto := range protocols {
		measure := measures[proto]
		for try := 1; ; try++ {
			off := measure(from, to, family)/want - 1
			c.t.Logf("IPv%d %s %s→%s, %.0f bit/s: %+.2f %%", family, proto, from, to, want, 100*off)
			if math.Abs(off) > exact && try == tries {
				c.t.Errorf("IPv%d %s %s→%s: %+.2f %% of %.0f bit/s, want 2 %% at most", family, proto, from, to,
					100*off, want)
			}
			if math.Abs(off) <= exact || try == tries {
				break
			}
		}
	}
}
