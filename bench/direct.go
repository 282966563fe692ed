package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"

	"myelin/config"
)

// directPath is plain with the client in a control group of its own, as pods are, and a server that has many addresses.
// It has no Services: it is what the ways to Services are compared with, and what they are built on, so that nothing
// differs but the translation.
//
//	┌────────── a ──────────┐   wire, MTU 1500    ┌────────── b ──────────┐
//	│ kube-proxy     wire0 ─┼─────────────────────┼─ wire0                │
//	│ pod0                  │                     │                  pod0 │
//	└──┼────────────────────┘                     └────────────────────┼──┘
//	   └─ eth0 in ap, sockets translated       eth0 in bp, 10.2.64.0/18 ─┘
type directPath struct {
	kernelPath
	cgroup string
}

// direct is pod→pod through the kernel's routing.
func direct() Scenario { return &directPath{kernelPath: kernelPath{name: "direct", pods: true}} }

func (d *directPath) Setup(ctx context.Context, family Family) (Path, error) {
	path, err := d.kernelPath.Setup(ctx, family)
	if err != nil {
		return path, err
	}
	at, more := family.addressing(), family.backends()
	option := at.option
	err = ip(ctx,
		fmt.Sprintf("-n %sa route add %s via %s", d.prefix, more, at.wire[1]),
		// one neighbour for all of them
		fmt.Sprintf("-n %sb route add %s via %s dev pod0 onlink", d.prefix, more, at.pod[1]),
		fmt.Sprintf("-n %sbp %s route add local %s dev lo", d.prefix, option, more))
	if err != nil {
		return path, err
	}
	// IPv6 wants more than a route to listen on an address.
	err = run(ctx, "ip", "netns", "exec", d.server(), "sh", "-c", "echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind")
	if err == nil {
		err = run(ctx, "ip", "netns", "exec", path.Client.Netns, "ping", "-c2", "-W5", path.Target.String())
	}
	if err != nil {
		return path, err
	}
	root, err := (&config.Config{}).Cgroup("/proc")
	if err != nil {
		return path, err
	}
	d.cgroup = filepath.Join(root, strings.TrimSuffix(d.prefix, "-"))
	if err := os.Mkdir(d.cgroup, 0o755); err != nil {
		return path, err
	}
	path.Client.Cgroup = d.cgroup
	return path, nil
}

func (d *directPath) Teardown(ctx context.Context) error {
	err := d.kernelPath.Teardown(ctx)
	if d.cgroup != "" {
		err = errors.Join(err, os.Remove(d.cgroup))
		d.cgroup = ""
	}
	return err
}

// server is the namespace of the server's pod.
func (d *directPath) server() string { return d.prefix + "bp" }

// backends are addresses that the server's pod has, all of them: 16,384 at least.
func (f Family) backends() netip.Prefix {
	if f == IPv6 {
		return netip.MustParsePrefix("fd00:10:2:1::/64")
	}
	return netip.MustParsePrefix("10.2.64.0/18")
}

// inNetns runs fn in a namespace: the sockets that it opens on its own goroutine belong there.
func inNetns(name string, fn func() error) error {
	return ns.WithNetNSPath("/run/netns/"+name, func(ns.NetNS) error { return fn() })
}
