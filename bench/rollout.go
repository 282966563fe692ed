package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"myelin/bench/results"
	"myelin/cluster"
)

const (
	replicas = 3
	// pace is the time between the pods that one update replaces, one after the other.
	pace = 20 * time.Millisecond
	// grace is how long a pod answers from when its slice says that it terminates: an operator's
	// terminationGracePeriodSeconds, which is 30 s by default.
	grace = 150 * time.Millisecond
)

// rollout is a Deployment that is updated, beside other Services. Each pod has an address of its own that no pod
// answers on before it is ready and after it is gone.
type rollout struct {
	*socketsPath
	family Family
	next   netip.Addr
	pods   []*replica // in the slice
	opened []net.Listener
}

type replica struct {
	addr     netip.Addr
	server   net.Listener
	leaves   time.Time // zero: ready
	replaced bool
}

// Rollouts updates a Deployment of 3 pods so many times, pod after pod, while a client connects to its Service at a
// rate, and counts the requests that failed though pods were ready.
func Rollouts(ctx context.Context, family Family, updates, rate int) (r results.Result, err error) {
	d := &rollout{socketsPath: newSockets("rollout", 100, 1), family: family, next: family.backends().Addr().Next()}
	defer func() {
		for _, l := range d.opened {
			l.Close() // again, for most
		}
		err = errors.Join(err, d.Teardown(context.WithoutCancel(ctx)))
	}()
	path, err := d.Setup(ctx, family)
	if err != nil {
		return r, err
	}
	c, err := startClient(ctx, path)
	if err != nil {
		return r, err
	}
	defer c.stop()
	if err := d.begin(c); err != nil {
		return r, err
	}
	if err := c.say("load %s %d", netip.AddrPortFrom(family.added(), serverPort), rate); err != nil {
		return r, err
	}
	for range updates {
		if err := d.update(ctx); err != nil {
			return r, err
		}
	}
	l, err := d.stop(c)
	if err != nil {
		return r, err
	}
	if short := float64(l.Requests) < 0.95*float64(rate)*l.Seconds; short || l.Requests < updates {
		return r, fmt.Errorf("%d updates: %d requests in %.0f s are not %d a second", updates, l.Requests,
			l.Seconds, rate)
	}
	if l.Failed > 0 {
		fmt.Printf("%d of %d requests failed, the first by %s\n", l.Failed, l.Requests, l.First)
	}
	return results.Result{Name: "service/rollout_failed" + family.suffix(), Value: float64(l.Failed),
		Unit: "requests"}, nil
}

// begin has the first pods ready, and waits until one can be reached.
func (d *rollout) begin(c *client) error {
	for range replicas {
		if err := d.start(); err != nil {
			return err
		}
	}
	var o objects
	o.add(d.family, "web", d.family.added(), []port{{"tcp", serverPort, corev1.ProtocolTCP}})
	services, _, err := o.rows()
	if err != nil {
		return err
	}
	slices, err := d.slices()
	if err != nil {
		return err
	}
	if err := d.balancer.put(services, slices); err != nil {
		return err
	}
	if err := c.say("connect %s", netip.AddrPortFrom(d.family.added(), serverPort)); err != nil {
		return err
	}
	_, err = c.answer()
	return err
}

// update replaces every pod: a new one is ready before an old one terminates, as with maxSurge 1 and maxUnavailable 0.
func (d *rollout) update(ctx context.Context) error {
	for _, p := range d.pods {
		p.replaced = true
	}
	for range replicas {
		if err := d.start(); err != nil {
			return err
		}
		if err := d.publish(); err != nil {
			return err
		}
		for _, p := range d.pods {
			if p.replaced && p.leaves.IsZero() {
				p.leaves = time.Now().Add(grace)
				break
			}
		}
		if err := d.publish(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pace):
		}
		if err := d.reap(); err != nil {
			return err
		}
	}
	return nil
}

func (d *rollout) start() error {
	if !d.family.backends().Contains(d.next) {
		d.next = d.family.backends().Addr().Next()
	}
	l, err := serveByte(d.server(), netip.AddrPortFrom(d.next, serverPort))
	if err != nil {
		return fmt.Errorf("start a pod: %w", err)
	}
	d.opened = append(d.opened, l)
	d.pods = append(d.pods, &replica{addr: d.next, server: l})
	d.next = d.next.Next()
	return nil
}

// reap ends pods whose grace is over: they answer no more, and then their slice forgets them, as it happens with a
// kubelet.
func (d *rollout) reap() error {
	var left []*replica
	for _, p := range d.pods {
		if p.leaves.IsZero() || time.Now().Before(p.leaves) {
			left = append(left, p)
		} else if err := p.server.Close(); err != nil {
			return err
		}
	}
	d.pods = left
	return d.publish()
}

func (d *rollout) publish() error {
	slices, err := d.slices()
	if err != nil {
		return err
	}
	return d.balancer.put(nil, slices)
}

func (d *rollout) slices() ([]*cluster.EndpointSlice, error) {
	var addrs []netip.Addr
	for _, p := range d.pods {
		addrs = append(addrs, p.addr)
	}
	s := slice(d.family, "web", "web-0", []port{{"tcp", serverPort, corev1.ProtocolTCP}}, addrs)
	for i, p := range d.pods {
		ready, leaves, serving := p.leaves.IsZero(), !p.leaves.IsZero(), true
		s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving,
			Terminating: &leaves}
	}
	o := objects{slices: []*discoveryv1.EndpointSlice{s}}
	_, rows, err := o.rows()
	return rows, err
}

func (d *rollout) stop(c *client) (l clientLoad, err error) {
	if err := c.say("stop"); err != nil {
		return l, err
	}
	line, err := c.answer()
	if err != nil {
		return l, err
	}
	return l, json.Unmarshal([]byte(line), &l)
}
