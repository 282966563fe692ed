package control

import (
	"context"
	"net/http"
	"net/netip"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"myelin/internal/daemon"
	"myelin/l7/config"
	"myelin/l7/dns"
	"myelin/l7/httpproxy"
	"myelin/policy"
)

// recorder is a handler that has records and nothing else.
type recorder struct {
	Handler
	records Records
}

func (r recorder) Records(context.Context, uint64) Records { return r.records }

// someRecords are one of a DNS answer and one of an HTTP request, n times.
func someRecords(n int) Records {
	client, server := netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("[2001:db8::1]:53")
	flow := Flow{Source: client, Destination: server, Proto: 17, Rules: [2]uint32{1, 2}}
	part := &config.Part{L7: policy.L7{HTTP: []policy.HTTPRule{{Method: "GET"}}}}
	r := Records{Next: 12, Lost: 3}
	for range n {
		r.List = append(r.List,
			Record{Seq: 10, Flow: flow, DNS: &dns.Record{Time: time.Unix(1, 2).UTC(), Slot: 3, Known: true,
				Source: client, Destination: server, Proto: 17, Response: true, Query: "a.example.",
				QueryTypes: []uint16{1}, AnswerTypes: []uint16{5, 1}, Addresses: []netip.Addr{client.Addr()},
				CNAMEs: []string{"b.example."}, TTL: 60, Latency: time.Millisecond}},
			Record{Seq: 11, Flow: flow, HTTP: &httpproxy.Record{Time: time.Unix(1, 2).UTC(), Method: "GET", Path: "/",
				Status: 200, Denied: -1, Parts: [2]*config.Part{part, nil}}})
	}
	return r
}

// serve has a client of a proxy with records.
func serve(t testing.TB, r Records) *Client {
	dir := t.TempDir()
	l, err := daemon.Listen(filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, recorder{records: r}) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return newClient(filepath.Join(dir, "socket"))
}

// replaced is a handler of a proxy that another one takes over from.
type replaced struct {
	Handler
	version string
	added   chan []Record
}

func (r *replaced) Status() Status       { return Status{Version: r.version} }
func (r *replaced) Drain()               {}
func (r *replaced) Add(records []Record) { r.added <- records }

// TestTakeOver: a client that has a connection to a proxy finds the one that takes over with its next request, and the
// records that are left get there.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "socket")
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	start := func(version string) *replaced {
		l, err := daemon.Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		r := &replaced{version: version, added: make(chan []Record, 1)}
		all.Go(func() {
			if err := Serve(ctx, l, r); err != nil {
				t.Error(err)
			}
		})
		return r
	}
	defer all.Wait()
	defer stop()
	c := newClient(path)
	want := func(version string) {
		t.Helper()
		if s, err := c.Status(ctx); err != nil || s.Version != version {
			t.Errorf("status of version %q, %v; want %q", s.Version, err, version)
		}
	}
	start("old")
	want("old")
	if err := c.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	want("old") // the other one does not listen yet
	next := start("new")
	want("new")
	list := someRecords(1).List
	if err := c.Add(ctx, list); err != nil {
		t.Fatal(err)
	}
	if got := <-next.added; !reflect.DeepEqual(got, list) {
		t.Errorf("records %+v, want %+v", got, list)
	}
}

// BenchmarkRecords compares both encodings, at both ends, by the record.
func BenchmarkRecords(b *testing.B) {
	c := serve(b, someRecords(1000))
	b.Run("CBOR", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Records(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("JSON", func(b *testing.B) {
		for b.Loop() {
			var r Records
			if err := c.do(b.Context(), http.MethodGet, "/v1/records?from=1", nil, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestRecords: records reach the agent as they are, and another client gets JSON.
func TestRecords(t *testing.T) {
	t.Parallel()
	want := someRecords(1)
	c, ctx := serve(t, want), t.Context()
	got, err := c.Records(ctx, 1)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	var plain Records
	err = c.do(ctx, http.MethodGet, "/v1/records?from=1", nil, &plain)
	if err != nil || !reflect.DeepEqual(plain, want) {
		t.Errorf("by JSON: %+v, %v; want %+v", plain, err, want)
	}
}
