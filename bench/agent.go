package bench

import (
	"context"
	_ "embed"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"myelin/endpoint/podlink"
	"myelin/lab"
)

//	┌──────── node1 ────────┐        wire         ┌──────── node2 ────────┐
//	│ agent            eth0 ┼─────────────────────┼ eth0            agent │
//	└──┼────────────────────┘                     └────────────────────┼──┘
//	   └─ bench/client                                   bench/server ─┘

//go:embed pods.yaml
var pods []byte

// agentPath is a Scenario of two nodes with agents.
type agentPath struct {
	name     string
	binaries string
	values   map[string]any
	// grouped runs netperf in the control groups of the pods, not in that of node→node's.
	grouped bool
	mtu     int // of the wire; 0 is 1500
	// prepare, if not nil, is called with a folder of the path before the agents start.
	prepare func(dir string) error
	dir     string
	lab     *lab.Lab
}

// Agents are the ways of a packet of a family from pod to pod with agents on the nodes; binaries is the folder of
// myelin and myelin-cni.
func Agents(binaries string, family Family) []Scenario {
	path := func(name string, values map[string]any) Scenario {
		all := map[string]any{"ipv6.enabled": true, "hubble.enabled": false}
		for k, v := range values {
			all[k] = v
		}
		return &agentPath{name: name, binaries: binaries, values: all}
	}
	all := []Scenario{
		path("veth", map[string]any{"autoDirectNodeRoutes": true}),
		path("veth-hubble", map[string]any{"autoDirectNodeRoutes": true, "hubble.enabled": true}),
		path("veth-flows", map[string]any{"autoDirectNodeRoutes": true, "myelin.flowTracking": "always"}),
		path("legacy", map[string]any{"autoDirectNodeRoutes": true, "bpf.hostLegacyRouting": true}),
		path("vxlan", map[string]any{"routingMode": "tunnel"}),
	}
	if podlink.ProbeNetkit() == nil {
		for _, kind := range []podlink.Kind{podlink.Netkit, podlink.NetkitL2} {
			all = append(all, path(string(kind), map[string]any{"autoDirectNodeRoutes": true,
				"bpf.datapathMode": string(kind)}))
		}
	}
	if family == IPv4 {
		// What IPv4 pays for IPv6 being there: docs/adr/0004.
		all = append(all, path("veth-ipv4", map[string]any{"autoDirectNodeRoutes": true, "ipv6.enabled": false}))
	}
	return all
}

func (a *agentPath) Name() string { return a.name }

// patience is for the VM, where everything takes ten times as long.
const patience = 3 * time.Minute

func (a *agentPath) Setup(ctx context.Context, family Family) (Path, error) {
	var err error
	if a.dir, err = os.MkdirTemp("", "mybench-"); err != nil {
		return Path{}, err
	}
	manifests := filepath.Join(a.dir, "pods.yaml")
	if err := os.WriteFile(manifests, pods, 0o644); err != nil {
		return Path{}, err
	}
	if a.prepare != nil {
		if err := a.prepare(a.dir); err != nil {
			return Path{}, err
		}
	}
	binary := filepath.Join(a.binaries, "myelin")
	a.lab, err = lab.Up(ctx, lab.Options{
		Images: lab.ImagesNone, Manifests: manifests,
		Name:   fmt.Sprintf("mybench%d%04x", os.Getpid(), crc32.ChecksumIEEE([]byte(a.name))&0xffff),
		Dir:    filepath.Join(a.dir, "lab"),
		Binary: binary, InProcess: true, Agent: binary, CNIPlugin: filepath.Join(a.binaries, "myelin-cni"),
		Values: a.values, Fabric: lab.FabricWire, MTU: a.mtu, Timeout: patience,
	})
	if err != nil {
		return Path{}, err
	}
	client, server := a.lab.Pod("bench/client"), a.lab.Pod("bench/server")
	target := server.IPv4()
	if family == IPv6 {
		target = server.IPv6()
	}
	if _, err := client.Exec(ctx, "ping", "-c", "2", "-W", "5", target.String()); err != nil {
		return Path{}, fmt.Errorf("%s: %w", a.name, err)
	}
	path := Path{Client: Place{Netns: client.NetnsName()}, Server: Place{Netns: server.NetnsName()}, Target: target,
		Listen: target, ClientNode: a.lab.Node("node1").NetnsName(), ServerNode: a.lab.Node("node2").NetnsName()}
	if a.grouped {
		path.Client.Cgroup, path.Server.Cgroup = client.Cgroup(), server.Cgroup()
	}
	return path, nil
}

func (a *agentPath) Teardown(ctx context.Context) error {
	var err error
	if a.lab != nil {
		err = a.lab.Down(ctx)
		a.lab = nil
	}
	if a.dir != "" {
		os.RemoveAll(a.dir)
		a.dir = ""
	}
	return err
}
