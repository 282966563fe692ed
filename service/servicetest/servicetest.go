// Package servicetest runs package service on clusters made up by tests.
package servicetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"myelin/cluster"
	"myelin/cluster/clustertest"
	"myelin/service"
)

// Cluster is a cluster as one node, n1, sees it.
type Cluster struct {
	*service.Services
	follower *cluster.Follower
}

// New returns an empty cluster. Numbers and states are kept in dir, if there is one.
func New(t testing.TB, config service.Config, dir string) *Cluster {
	t.Helper()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s, err := service.New(service.Params{DB: db, Tables: tables, Config: config, Node: "n1", Dir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Tables.Follow(s.DB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &Cluster{Services: s, follower: f}
}

// Step brings the desired state up to date with the cluster.
func (c *Cluster) Step() { c.Services.Step(c.follower) }

// Set makes the cluster equal to objects, and brings the desired state up to date.
func (c *Cluster) Set(t testing.TB, o clustertest.Objects) {
	t.Helper()
	o.Replace(t, c.DB, c.Tables, nil)
	c.Step()
}

// PutSlice writes one slice, as a watch does, and brings the desired state up to date.
func (c *Cluster) PutSlice(t testing.TB, part *cluster.EndpointSlice) {
	t.Helper()
	txn := c.DB.WriteTxn(c.Tables.Slices)
	if _, _, err := c.Tables.Slices.Insert(txn, part); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
	c.Step()
}

// ConfigOf is the configuration in the line "config: " of an archive's comment.
func ConfigOf(t *testing.T, archive *txtar.Archive) (config service.Config) {
	t.Helper()
	if _, text, ok := strings.Cut(string(archive.Comment), "\nconfig: "); ok {
		if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return config
}

// Sorted sorts lines, into an order that is the same for both families.
func Sorted(text string) string {
	return strings.Join(slices.Sorted(strings.SplitSeq(text, "\n")), "\n")
}

// Many makes Services with backends each, in slices of at most 1000 endpoints. Those with an odd index are IPv6.
func Many(services, backends int) (o clustertest.Objects) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00:1::1")
	vip4, vip6 := netip.MustParseAddr("172.20.0.1"), netip.MustParseAddr("fd00:96::1")
	for i := range services {
		pod, vip, family := &four, &vip4, "IPv4"
		if i%2 == 1 {
			pod, vip, family = &six, &vip6, "IPv6"
		}
		name := fmt.Sprintf("s%d", i)
		o.Services = append(o.Services, &cluster.Service{
			Namespace: "x", Name: name, Type: "ClusterIP", ClusterIPs: []netip.Addr{*vip}, Families: []string{family},
			Ports: []cluster.ServicePort{{Port: 80, Protocol: "TCP"}},
		})
		*vip = vip.Next()
		for first := 0; first < backends; first += 1000 {
			part := &cluster.EndpointSlice{
				Namespace: "x", Name: fmt.Sprintf("%s-%d", name, first), Service: name, AddressType: family,
				Ports: []cluster.SlicePort{{Port: 8080, Protocol: "TCP"}},
			}
			for j := first; j < min(backends, first+1000); j++ {
				node := fmt.Sprintf("n%d", j%100)
				part.Endpoints = append(part.Endpoints, cluster.Endpoint{Address: *pod, Ready: true, Serving: true,
					Node: node})
				*pod = pod.Next()
			}
			o.Slices = append(o.Slices, part)
		}
	}
	return o
}

// With is a slice whose endpoint i is changed.
func With(part *cluster.EndpointSlice, i int, change func(*cluster.Endpoint)) *cluster.EndpointSlice {
	c := *part
	c.Endpoints = append([]cluster.Endpoint(nil), part.Endpoints...)
	change(&c.Endpoints[i])
	return &c
}

// Drain makes an endpoint terminate.
func Drain(e *cluster.Endpoint) { e.Ready, e.Terminating = false, true }

// Sized is the YAML of a Service with n backends, of which half have a weight, and a policy for external traffic. The
// first backend is the pod after number first.
func Sized(v6 bool, n, first int, weight, policy string) string {
	return SizedAs(v6, n, first, weight, policy, "", "")
}

// SizedAs is Sized with annotations and source ranges. Ranges make it a Service of type LoadBalancer.
func SizedAs(v6 bool, n, first int, weight, policy, annotations, ranges string) string {
	var b strings.Builder
	kind, status := "NodePort", ""
	if ranges != "" {
		kind, status = "LoadBalancer", "status: {loadBalancer: {ingress: [{ip: @lb1}]}}\n"
	}
	fmt.Fprintf(&b, `kind: Service
metadata: {name: web, annotations: {%s}}
spec:
  type: %s
  clusterIP: @vip1
  externalIPs: [@ext1]
  externalTrafficPolicy: %s
  loadBalancerSourceRanges: [%s]
  ports: [{port: 80, nodePort: 30080}]
%s`, annotations, kind, policy, ranges, status)
	for i := 0; i < n; i += 10 {
		fmt.Fprintf(&b, `---
kind: EndpointSlice
metadata:
  name: web-%d
  labels: {kubernetes.io/service-name: web}
  annotations: {service.cilium.io/weight: "%s"}
addressType: @family
ports: [{port: 8080}]
endpoints:
`, i, []string{"1", weight}[i/10%2])
		for j := i; j < min(n, i+10); j++ {
			fmt.Fprintf(&b, "- {addresses: [@pod%d], nodeName: n%d}\n", first+j+1, j%2+1)
		}
	}
	return clustertest.Named(b.String(), v6, true)
}

// Apply calls a reconciler's operations for the rows of a table that differ between two snapshots.
func Apply[R comparable](
	ctx context.Context, ops reconciler.Operations[R], before, now statedb.ReadTxn, t statedb.Table[R],
	key func(R) service.L4Addr,
) error {
	var errs []error
	gone := map[service.L4Addr]R{}
	for row := range t.All(before) {
		gone[key(row)] = row
	}
	for row, rev := range t.All(now) {
		if old, ok := gone[key(row)]; !ok || old != row {
			errs = append(errs, ops.Update(ctx, now, rev, row))
		}
		delete(gone, key(row))
	}
	for _, row := range gone {
		errs = append(errs, ops.Delete(ctx, now, 0, row))
	}
	return errors.Join(errs...)
}

// Wait waits until done, whose channel closes at the next change, and fails the test if ctx ends before.
func Wait(
	ctx context.Context, t *testing.T, done func(statedb.ReadTxn) (bool, <-chan struct{}), db *statedb.DB,
) {
	t.Helper()
	for {
		ok, changed := done(db.ReadTxn())
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
	}
}
