package agent

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/agent/feature"
	apiv1 "myelin/api/v1"
	"myelin/cluster"
	"myelin/config"
	"myelin/service"
)

// servicesOf is an agent that knows two Services, and nothing else.
func servicesOf(t *testing.T) *agent {
	db := statedb.New()
	tables, err := service.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	web, dns := cluster.Key{Namespace: "demo", Name: "web"}, cluster.Key{Namespace: "demo", Name: "dns"}
	txn := db.WriteTxn(tables.Services, tables.Frontends, tables.Backends)
	tables.Services.Insert(txn, &service.Service{
		ID: 2, Namespace: "demo", Name: "web", Type: service.LoadBalancer, ExternalLocal: true,
		Problems: []string{"a: bad", "b: worse"}, Source: "manifests:web.yaml",
	})
	tables.Services.Insert(txn, &service.Service{ID: 1, Namespace: "demo", Name: "dns", Type: service.ClusterIP})
	for _, b := range []*service.Backend{
		{ID: 12, Address: netip.MustParseAddrPort("10.0.1.2:8080"), Protocol: service.TCP, Node: "node1", Zone: "a",
			Weight: 1, Uses: []service.Use{{Service: web, Weight: 1}}},
		{ID: 3, Address: netip.MustParseAddrPort("10.0.2.2:8080"), Protocol: service.TCP, State: service.Terminating,
			Node: "node2", Weight: 5, Uses: []service.Use{{Service: dns, Weight: 2}, {Service: web, Weight: 5}}},
		{ID: 7, Address: netip.MustParseAddrPort("[fd00::2]:8080"), Protocol: service.UDP, State: service.Quarantined,
			Weight: 1, Uses: []service.Use{{Service: dns, Weight: 1}}},
	} {
		tables.Backends.Insert(txn, b)
	}
	both, one := []service.BackendRef{{ID: 12, Weight: 1}, {ID: 3, Weight: 5}},
		[]service.BackendRef{{ID: 12, Weight: 1}}
	const everywhere = service.Internal | service.External
	for _, f := range []*service.Frontend{
		{Address: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: service.TCP, ServiceID: 2, Service: web,
			PortName: "http", Type: service.ClusterIP, Scopes: service.Internal, Internal: both,
			Status: reconciler.StatusPending()},
		{Address: netip.MustParseAddrPort("0.0.0.0:30080"), Protocol: service.TCP, ServiceID: 2, Service: web,
			Type: service.NodePort, Scopes: everywhere, Internal: both, External: one},
		{Address: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: service.TCP, ServiceID: 2, Service: web,
			Type: service.LoadBalancer, Scopes: everywhere, Internal: slices.Clone(both), External: both},
		{Address: netip.MustParseAddrPort("192.0.2.2:80"), Protocol: service.TCP, ServiceID: 2, Service: web,
			Type: service.ExternalIP, Scopes: everywhere, Elsewhere: service.External, Internal: both,
			Status: reconciler.StatusError(errors.New("map frontends is full"))},
		{Address: netip.MustParseAddrPort("[fd00:96::1]:53"), Protocol: service.UDP, ServiceID: 1, Service: dns,
			Type: service.ClusterIP, Scopes: service.Internal, Internal: []service.BackendRef{{ID: 7, Weight: 1}}},
		{Address: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: service.SCTP, ServiceID: 1, Service: dns,
			Type: service.ClusterIP, Scopes: service.Internal, Elsewhere: service.Internal},
		{Address: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: service.UDP, ServiceID: 1, Service: dns,
			Type: service.ClusterIP, Scopes: service.Internal},
		{Address: netip.MustParseAddrPort("192.0.2.3:53"), Protocol: service.UDP, ServiceID: 1, Service: dns,
			Type: service.ExternalIP, Scopes: everywhere, Elsewhere: service.External},
	} {
		tables.Frontends.Insert(txn, f)
	}
	txn.Commit()
	c := config.Default()
	c.SocketLB.Enabled = true
	a := agentWith(c)
	a.DB, a.services.services = db, &service.Services{Desired: tables}
	return a
}

// textOf is a view as lines of cells.
func textOf(t *testing.T, v feature.List) string {
	var b strings.Builder
	if err := v.Each(func(row tableRow) bool {
		cells := row.TableRow()
		if len(cells) != len(v.Header) {
			t.Errorf("%d cells in %d columns: %q", len(cells), len(v.Header), cells)
		}
		b.WriteString(strings.ReplaceAll(strings.Join(cells, " | "), "\n", "; ") + "\n")
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestServiceAddresses(t *testing.T) {
	const want = `1 | 10.96.0.1:53/UDP | ClusterIP | demo/dns |  | none: refused
1 | 10.96.0.1:53/SCTP | ClusterIP | demo/dns |  | none on this node
1 | 192.0.2.3:53/UDP | ExternalIPs | demo/dns |  | none on this node
1 | 192.0.2.3:53/UDP/i | ExternalIPs | demo/dns |  | none: refused
1 | [fd00:96::1]:53/UDP | ClusterIP | demo/dns |  | 1 => [fd00::2]:8080/UDP (quarantined)
2 | 0.0.0.0:30080/TCP | NodePort | demo/web |  | 1 => 10.0.1.2:8080/TCP (active)
2 | 0.0.0.0:30080/TCP/i | NodePort | demo/web |  | 1 => 10.0.1.2:8080/TCP (active); 2 => 10.0.2.2:8080/TCP (terminating, weight 5)
2 | 10.96.0.10:80/TCP | ClusterIP | demo/web | http | 1 => 10.0.1.2:8080/TCP (active); 2 => 10.0.2.2:8080/TCP (terminating, weight 5)
2 | 192.0.2.1:80/TCP | LoadBalancer | demo/web |  | 1 => 10.0.1.2:8080/TCP (active); 2 => 10.0.2.2:8080/TCP (terminating, weight 5)
2 | 192.0.2.2:80/TCP | ExternalIPs | demo/web |  | none on this node
2 | 192.0.2.2:80/TCP/i | ExternalIPs | demo/web |  | 1 => 10.0.1.2:8080/TCP (active); 2 => 10.0.2.2:8080/TCP (terminating, weight 5)
`
	if got := textOf(t, servicesOf(t).services.lists()["service-addresses"]); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestServiceDetails(t *testing.T) {
	const want = `1 | demo/dns | ClusterIP |  | 10.96.0.1:53/UDP (ClusterIP): none: refused; 10.96.0.1:53/SCTP ` +
		`(ClusterIP): none on this node; ` +
		`192.0.2.3:53/UDP (ExternalIPs): none on this node; 192.0.2.3:53/UDP/i (ExternalIPs): none: refused; ` +
		`[fd00:96::1]:53/UDP (ClusterIP): 1 backend` +
		` | 10.0.2.2:8080/TCP (terminating, node2, weight 2); [fd00::2]:8080/UDP (quarantined) |  | 
2 | demo/web | LoadBalancer | external=local | 0.0.0.0:30080/TCP (NodePort): 1 backend; 0.0.0.0:30080/TCP/i (NodePort): 2 backends; ` +
		`10.96.0.10:80/TCP (ClusterIP, port http): 2 backends; not yet in the kernel; 192.0.2.1:80/TCP ` +
		`(LoadBalancer): 2 backends; ` +
		`192.0.2.2:80/TCP (ExternalIPs): none on this node; not in the kernel: map frontends is full; ` +
		`192.0.2.2:80/TCP/i (ExternalIPs): 2 backends; not in the kernel: map frontends is full` +
		` | 10.0.2.2:8080/TCP (terminating, node2, weight 5); 10.0.1.2:8080/TCP (active, node1) | ` +
		`a: bad; b: worse | manifests:web.yaml
`
	v := servicesOf(t).services.lists()["service-details"]
	if got := textOf(t, v); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := v.Each(func(row tableRow) bool {
		var got struct {
			Name      string
			Frontends []struct {
				Frontend, Type string
				Backends       []struct{ Address string }
			}
			Backends []struct {
				ID    int
				State string
			}
		}
		data, err := json.Marshal(row)
		if err != nil || json.Unmarshal(data, &got) != nil || got.Name != "dns" ||
			len(got.Frontends) != 5 || len(got.Backends) != 2 ||
			got.Frontends[4].Backends[0].Address != "[fd00::2]:8080" || got.Backends[1].State != "quarantined" {
			t.Errorf("%s, %v", data, err)
		}
		return false
	}); err != nil {
		t.Fatal(err)
	}
}

func TestServiceBackends(t *testing.T) {
	const want = `3 | 10.0.2.2:8080/TCP | terminating | node2 |  | 5 |  | demo/dns(2) demo/web
7 | [fd00::2]:8080/UDP | quarantined |  |  | 1 |  | demo/dns
12 | 10.0.1.2:8080/TCP | active | node1 | a | 1 |  | demo/web
`
	v := servicesOf(t).services.lists()["service-backends"]
	if got := textOf(t, v); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := v.Each(func(row tableRow) bool {
		var got struct {
			ID    uint32 `json:"id"`
			State string `json:"state"`
		}
		data, err := json.Marshal(row)
		if err != nil || json.Unmarshal(data, &got) != nil || got.ID != 3 || got.State != "terminating" {
			t.Errorf("%s, %v", data, err)
		}
		return false
	}); err != nil {
		t.Fatal(err)
	}
}

// TestServicesOff: what is not there since Services are off is said to be so.
func TestServicesOff(t *testing.T) {
	a := servicesOf(t)
	if err := a.refuse("frontends"); err != nil {
		t.Error(err)
	}
	a.Config.SocketLB.Enabled, a.services.services = false, nil
	s := &answers{agent: a}
	for _, name := range []string{"services", "frontends", "backends", "service-addresses", "service-backends",
		"service-details", "api-services", "health-probes"} {
		if _, err := s.view(name); status.Code(err) != codes.FailedPrecondition ||
			!strings.Contains(err.Error(), "socketLB.enabled are false") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.refuse("nodes"); err != nil {
		t.Error(err)
	}
}

// parts takes what is sent.
type parts struct {
	grpc.ServerStream
	sent []*apiv1.ListResponse
}

func (p *parts) Send(r *apiv1.ListResponse) error {
	p.sent = append(p.sent, r)
	return nil
}

// wide is a row of a Service with many backends.
type wide string

func (wide) TableHeader() []string { return []string{"Text"} }
func (w wide) TableRow() []string  { return []string{string(w)} }

// TestPartsAreBounded: a client takes 4 MiB at once.
func TestPartsAreBounded(t *testing.T) {
	row := wide(strings.Repeat("x", 300<<10))
	for _, asJSON := range []bool{false, true} {
		stream := &parts{}
		p := &part{stream: stream, json: asJSON, next: &apiv1.ListResponse{}}
		for range 20 {
			if p.add(row, row.TableRow()); p.err != nil {
				t.Fatal(p.err)
			}
		}
		if err := p.send(); err != nil {
			t.Fatal(err)
		}
		bytes := 0
		for _, r := range stream.sent {
			n := len(r.GetJson())
			for _, x := range r.GetRows() {
				n += len(x.GetCells()[0])
			}
			if n > 4<<20 {
				t.Errorf("JSON %t: a part of %d bytes", asJSON, n)
			}
			bytes += n
		}
		if bytes < 20*len(row) {
			t.Errorf("JSON %t: %d bytes of %d", asJSON, bytes, 20*len(row))
		}
	}
}

// TestSocketOutcomes: each has a name.
func TestSocketOutcomes(t *testing.T) {
	for i, name := range socketOutcomeNames() {
		if name == "" {
			t.Errorf("outcome %d has no name", i)
		}
	}
}

// TestWideColumns: -o wide shows further columns beside those of a table, each with a cell in each row, and filters
// take them.
func TestWideColumns(t *testing.T) {
	a := servicesOf(t)
	v := a.services.lists()["service-addresses"]
	header, cells, err := wideColumns(&v)
	if err != nil ||
		strings.Join(header, ",") != "ID,Frontend,Service Type,Service,Port,Backend,Backend ID,Node,Weight" {
		t.Fatalf("%q, %v", header, err)
	}
	found := false
	if err := v.Each(func(row tableRow) bool {
		got := cells(row)
		if len(got) != len(header) {
			t.Errorf("%d cells in %d columns: %q", len(got), len(header), got)
		}
		found = found || slices.Equal(got[5:], []string{
			"1 => 10.0.1.2:8080/TCP (active)\n2 => 10.0.2.2:8080/TCP (terminating, weight 5)", "12\n3",
			"node1\nnode2", "1\n5",
		})
		return true
	}); err != nil || !found {
		t.Errorf("the backends' nodes are not shown: %v", err)
	}
	backends := a.services.lists()["service-backends"]
	if header, _, err := wideColumns(&backends); err != nil || !slices.Equal(header, backends.Header) {
		t.Errorf("a table without further columns has %q, %v", header, err)
	}
}
