package labtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"myelin/lab"
)

// mode is one way in which packets leave a pod.
type mode struct {
	name   string
	values map[string]any
	tunnel int // the family of the outer header; 0: native routing
}

// modes are all ways that the datapath has.
func modes() []mode {
	const always = "myelin.flowTracking"
	return []mode{
		{"native", map[string]any{"autoDirectNodeRoutes": true}, 0},
		{"native-flows", map[string]any{"autoDirectNodeRoutes": true, always: "always"}, 0},
		{"legacy", map[string]any{"autoDirectNodeRoutes": true, "bpf.hostLegacyRouting": true}, 0},
		{"vxlan", map[string]any{"routingMode": "tunnel"}, 4},
		{"vxlan6", map[string]any{"routingMode": "tunnel", "underlayProtocol": "ipv6"}, 6},
		{"vxlan-flows", map[string]any{"routingMode": "tunnel", always: "always"}, 4},
	}
}

func modeNamed(name string) mode {
	for _, m := range modes() {
		if m.name == name {
			return m
		}
	}
	panic("no mode " + name)
}

// stack is the families that pods have.
type stack struct {
	name     string
	families []int
}

func stacks() []stack { return []stack{dual(), {"ipv4", []int{4}}, {"ipv6", []int{6}}} }

func dual() stack { return stack{"dual", []int{4, 6}} }

func (s stack) has(family int) bool {
	for _, f := range s.families {
		if f == family {
			return true
		}
	}
	return false
}

// setup is what a test asks of its cluster; the zero value is two dual-stack nodes with native routing and the pods a1,
// b1 on the first and a2, b2 on the second.
type setup struct {
	mode   mode
	stack  stack
	nodes  int
	values map[string]any // over those of the mode
	mtu    int
	fabric string   // of the lab's options
	pods   []string // letters; each node gets one of each, named letter and node
	agent  string   // the agent's program, if it is not the one under test

	yaml    string       // the manifests, instead of those that nodes and pods stand for
	images  string       // what containers without a command do; nothing, if it is empty
	outside []netip.Addr // the world's addresses off the nodes' subnets, instead of the lab's own
}

// cluster is a lab that is up, and goes down with the test.
type cluster struct {
	*lab.Lab
	setup
	t *testing.T
}

// up brings a lab up.
func up(t *testing.T, s setup) *cluster {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	s.fill()
	dir := t.TempDir()
	file := filepath.Join(dir, "cluster.yaml")
	if err := os.WriteFile(file, []byte(s.manifests()), 0o644); err != nil {
		t.Fatal(err)
	}
	name := labName(t)
	t.Cleanup(func() { takeDown(t, name) })
	opts := lab.Options{
		Name: name, Manifests: file, Binary: filepath.Join(binDir(), "myelin"), Agent: s.agent,
		CNIPlugin: filepath.Join(binDir(), "myelin-cni"), Values: s.allValues(), MTU: s.mtu, Fabric: s.fabric,
		Timeout: patience(time.Minute),
		Outside: s.outside, Images: cmp.Or(s.images, lab.ImagesNone),
	}
	l, err := lab.Up(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Lab: l, setup: s, t: t}
	t.Cleanup(c.logsIfFailed)
	return c
}

// labName makes a name from the folder that the testing package made for this test alone.
func labName(t *testing.T) string {
	for i := 0; ; i++ {
		name := labPrefix() + fmt.Sprintf("%03d", i)
		f, err := os.OpenFile(filepath.Join(os.TempDir(), name), os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { os.Remove(f.Name()) })
		return name
	}
}

func takeDown(t *testing.T, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience(30*time.Second))
	defer cancel()
	if err := lab.Down(ctx, "", name, nil); err != nil {
		t.Error(err)
	}
	for _, what := range leftovers(name) {
		t.Errorf("left behind: %s", what)
	}
}

func (s *setup) fill() {
	if s.mode.name == "" {
		s.mode = modeNamed("native")
	}
	if s.stack.name == "" {
		s.stack = dual()
	}
	if s.nodes == 0 {
		s.nodes = 2
	}
	if s.pods == nil {
		s.pods = []string{"a", "b"}
	}
	if s.agent == "" {
		s.agent = filepath.Join(binDir(), "myelin")
	}
}

func (s *setup) allValues() map[string]any {
	v := map[string]any{
		"ipv4.enabled": s.stack.has(4), "ipv6.enabled": s.stack.has(6), "bpf.masquerade": true,
		"enableIPv4Masquerade": s.stack.has(4), "enableIPv6Masquerade": s.stack.has(6),
	}
	if kind := os.Getenv(envLinks); kind != "" {
		v["bpf.datapathMode"] = kind
	}
	maps.Copy(v, s.mode.values)
	maps.Copy(v, s.values)
	return v
}

// nodeYAML is node i: its pods are 10.0.i.0/24 and fd00:10:0:i::/64, its addresses 192.168.64.i and fd00:64::i.
func (s *setup) nodeYAML(i int) string {
	var cidrs, addresses []string
	for _, f := range []int{4, 6} {
		if s.stack.has(f) {
			cidrs = append(cidrs, fmt.Sprintf("%q", map[int]string{4: fmt.Sprintf("10.0.%d.0/24", i),
				6: fmt.Sprintf("fd00:10:0:%d::/64", i)}[f]))
		}
		if s.stack.has(f) || s.mode.tunnel == f {
			addresses = append(addresses, fmt.Sprintf("  - {type: InternalIP, address: %q}\n", nodeAddr(i, f)))
		}
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: node%d}\nspec: {podCIDRs: [%s]}\nstatus:\n  "+
		"addresses:\n%s",
		i, strings.Join(cidrs, ", "), strings.Join(addresses, ""))
}

func nodeAddr(i, family int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{192, 168, 64, byte(i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:64::%d", i))
}

// podYAML is a pod whose container has no command: the lab gives it a network and no process.
func podYAML(name string, node int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  nodeName: node%d\n  containers: "+
		"[{name: none, image: none}]\n", name, node)
}

func (s *setup) manifests() string {
	if s.yaml != "" {
		return s.yaml
	}
	var objects []string
	for i := 1; i <= s.nodes; i++ {
		objects = append(objects, s.nodeYAML(i))
		for _, letter := range s.pods {
			objects = append(objects, podYAML(fmt.Sprintf("%s%d", letter, i), i))
		}
	}
	return strings.Join(objects, "---\n")
}

// logsIfFailed shows what the agents said of a test that failed.
func (c *cluster) logsIfFailed() {
	if !c.t.Failed() {
		return
	}
	for _, n := range c.Nodes() {
		data, _ := os.ReadFile(n.AgentLog())
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		c.t.Logf("agent of %s, last lines:\n%s", n.Name(), strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
}

// place is a network namespace: a lab's, or a foreign one.
type place interface {
	Name() string
	Do(func() error) error
}

// end is a pod, a node or the world, with its addresses.
type end struct {
	place
	addrs []netip.Addr
}

func (e end) addr(family int) netip.Addr {
	for _, a := range e.addrs {
		if a.Is4() == (family == 4) {
			return a
		}
	}
	return netip.Addr{}
}

// end finds a pod, a node, or the world, which is known by its addresses off the nodes' subnets.
func (c *cluster) end(name string) end {
	c.t.Helper()
	switch {
	case name == "world":
		w := c.World()
		return c.checked(w, w.Err(), w.Outside())
	case strings.HasPrefix(name, "node"):
		n := c.Node(name)
		return c.checked(n, n.Err(), n.Addrs())
	}
	p := c.Pod(name)
	return c.checked(p, p.Err(), p.Addrs())
}

func (c *cluster) checked(p place, err error, addrs []netip.Addr) end {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
	return end{p, addrs}
}

// gateway is the address that the node has for its pods.
func gateway(node, family int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{10, 0, byte(node), 1})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:10:0:%d::1", node))
}

// eventually repeats a check until it passes, or the time is over.
func eventually(t *testing.T, what string, within time.Duration, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience(within)); ; time.Sleep(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
