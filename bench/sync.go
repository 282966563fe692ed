package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"myelin/bench/results"
)

const (
	serverPort = 8080
	syncs      = 5  // from nothing
	additions  = 21 // beside what is there
)

// FullSync measures how long as many Services with two backends each take from the cluster's tables to the kernel's
// maps, where nothing was before: the median, in seconds.
func FullSync(ctx context.Context, family Family, services int) (results.Result, error) {
	var took []float64
	for range syncs {
		one, err := fullSync(ctx, family, services)
		if err != nil {
			return results.Result{}, fmt.Errorf("write %d Services: %w", services, err)
		}
		took = append(took, one.Seconds())
	}
	return results.Result{Name: fmt.Sprintf("service/full_sync_s_%d%s", services, family.suffix()), Value: median(took),
		Unit: "s"}, nil
}

func fullSync(ctx context.Context, family Family, services int) (took time.Duration, err error) {
	s := newSockets("sync", services, 1)
	defer func() { err = errors.Join(err, s.Teardown(context.WithoutCancel(ctx))) }()
	if _, err := s.stand(ctx, family); err != nil {
		return 0, err
	}
	var all objects
	all.addOthers(family, services)
	rows, slices, err := all.rows()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := s.balancer.put(rows, slices); err != nil {
		return 0, err
	}
	if err := s.balancer.written(ctx, services, 2*services); err != nil {
		return 0, err
	}
	return time.Since(begin), nil
}

// AddOne measures how long it takes, beside as many Services, from one more with its EndpointSlice in the cluster's
// tables until a client gets through it to a server: the median, in milliseconds. The client tries all the time.
func AddOne(ctx context.Context, family Family, services int) (r results.Result, err error) {
	s := newSockets("add", services, 1)
	defer func() { err = errors.Join(err, s.Teardown(context.WithoutCancel(ctx))) }()
	path, err := s.Setup(ctx, family)
	if err != nil {
		return r, err
	}
	server, err := serveByte(s.server(), netip.AddrPortFrom(path.Listen, serverPort))
	if err != nil {
		return r, err
	}
	defer server.Close()
	c, err := startClient(ctx, path)
	if err != nil {
		return r, err
	}
	defer c.stop()
	var took []float64
	for i, at := range addresses(family.added(), additions) {
		ms, err := s.addOne(c, family, fmt.Sprintf("added-%d", i), at, path.Listen)
		if err != nil {
			return r, fmt.Errorf("add a Service: %w", err)
		}
		took = append(took, ms)
	}
	return results.Result{Name: fmt.Sprintf("service/add_one_ms_%d%s", services, family.suffix()), Value: median(took),
		Unit: "ms"}, nil
}

func (s *socketsPath) addOne(c *client, family Family, name string, at, backend netip.Addr) (ms float64, err error) {
	var one objects
	one.add(family, name, at, []port{{"tcp", serverPort, corev1.ProtocolTCP}}, backend)
	services, slices, err := one.rows()
	if err != nil {
		return 0, err
	}
	if err := c.say("connect %s", netip.AddrPortFrom(at, serverPort)); err != nil {
		return 0, err
	}
	const trying = 50 * time.Millisecond // so that it has been refused often
	time.Sleep(trying)
	begin := monotonic()
	if err := s.balancer.put(services, slices); err != nil {
		return 0, err
	}
	line, err := c.answer()
	if err != nil {
		return 0, err
	}
	end, err := strconv.ParseInt(line, 10, 64)
	if err == nil && end < begin {
		err = errors.New("the client got through before the Service was there")
	}
	return float64(end-begin) / 1e6, err
}

// added is the first address of Services that come later.
func (f Family) added() netip.Addr {
	if f == IPv6 {
		return netip.MustParseAddr("fd00:10:96::1:1")
	}
	return netip.MustParseAddr("10.96.1.1")
}
