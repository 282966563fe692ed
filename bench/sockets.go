package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"myelin/bpf"
)

// socketsPath is a directPath to a Service that is translated at the client's sockets: by package service, its maps and
// programs, without an agent, whose other features would change the way of the packets too.
type socketsPath struct {
	directPath
	services, backends int          // there are so many Services, and so many backends of that which is asked for
	settings           bpf.Settings // the node's
	dir                string
	balancer           *balancer
}

// sockets is pod→Service at the socket, that Service being one of so many, with so many backends, at least 1 each.
func sockets(name string, services, backends int) Scenario {
	return newSockets(name, services, backends)
}

func newSockets(name string, services, backends int) *socketsPath {
	return &socketsPath{directPath: directPath{kernelPath: kernelPath{name: name, pods: true}}, services: services,
		backends: backends, settings: bpf.Settings{Ipv4: 1, Ipv6: 1}}
}

func (s *socketsPath) Setup(ctx context.Context, family Family) (Path, error) {
	path, err := s.stand(ctx, family)
	if err != nil {
		return path, err
	}
	backends := []netip.Addr{path.Listen}
	if s.backends > 1 {
		backends = addresses(family.backends().Addr(), s.backends)
		path.Listen = netip.IPv4Unspecified()
		if family == IPv6 {
			path.Listen = netip.IPv6Unspecified()
		}
	}
	var all objects
	all.addNetperf(family, backends...)
	all.addOthers(family, s.services-1)
	services, slices, err := all.rows()
	if err == nil {
		err = s.balancer.put(services, slices)
	}
	if err != nil {
		return path, err
	}
	path.Target, path.Port = clusterIP(family), dataPort
	const ports = 3 // of netperf's Service
	return path, s.balancer.written(ctx, s.services-1+ports, 2*(s.services-1)+ports*s.backends)
}

// stand is Setup without Services. What is asked for in vain is refused by the client itself, at once.
func (s *socketsPath) stand(ctx context.Context, family Family) (Path, error) {
	path, err := s.directPath.Setup(ctx, family)
	if err != nil {
		return path, err
	}
	services := "10.96.0.0/12"
	if family == IPv6 {
		services = "fd00:10:96::/47"
	}
	if err := ip(ctx, fmt.Sprintf("-n %sap %s route add unreachable %s", s.prefix, family.addressing().option,
		services)); err != nil {
		return path, err
	}
	if s.dir, err = os.MkdirTemp("", s.prefix); err != nil {
		return path, err
	}
	settings := family.addressing().withGateway(s.settings)
	if bpf.HaveSetRetval() {
		settings.SetRetval = 1
	}
	s.balancer, err = newBalancer(ctx, s.dir, settings, bpf.Sizes{Services: s.room()},
		func(d *bpf.Datapath) (func() error, error) { return d.DetachSockets, d.AttachSockets(s.cgroup, false) })
	return path, err
}

// room is what an agent's maps have by default, or as much as is needed.
func (s *socketsPath) room() uint32 {
	const usual = 1 << 16
	room := uint32(usual)
	for int(room) < 2*(s.services+2*s.backends) {
		room *= 2
	}
	return room
}

func (s *socketsPath) Teardown(ctx context.Context) error {
	var err error
	if s.balancer != nil {
		err = s.balancer.close()
		s.balancer = nil
	}
	err = errors.Join(err, s.directPath.Teardown(ctx))
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
		s.dir = ""
	}
	return err
}
