package gateway

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
)

// That a node is drained outlives the agent, also if the file is damaged.
func TestDrainFile(t *testing.T) {
	path, noon := filepath.Join(t.TempDir(), "drain.json"), time.Unix(1_700_000_000, 0).UTC()
	load := func(want time.Time, wantDraining, wantError bool) *Drain {
		t.Helper()
		d, err := LoadDrain(path)
		since, draining := d.Since()
		if draining != wantDraining || !want.IsZero() && !since.Equal(want) || (err != nil) != wantError {
			t.Errorf("got %s, %t, %v", since, draining, err)
		}
		return d
	}
	d := load(time.Time{}, false, false)
	for _, at := range []time.Time{noon, noon.Add(time.Hour)} { // the second time changes nothing
		if err := d.Begin(at); err != nil {
			t.Fatal(err)
		}
	}
	d = load(noon, true, false)
	if was, err := d.End(); !was || err != nil {
		t.Errorf("%t %v", was, err)
	}
	if was, err := d.End(); was || err != nil {
		t.Errorf("again: %t %v", was, err)
	}
	load(time.Time{}, false, false)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	load(time.Time{}, true, true)
}

// progressStream collects what Drain sends.
type progressStream struct {
	grpc.ServerStreamingServer[apiv1.DrainProgress]
	ctx  context.Context
	sent chan *apiv1.DrainProgress
}

func (s *progressStream) Context() context.Context { return s.ctx }

func (s *progressStream) Send(p *apiv1.DrainProgress) error {
	s.sent <- p
	return nil
}

// drain calls Drain in the background.
func drain(t *testing.T, s *Server) (sent chan *apiv1.DrainProgress, ended chan error) {
	stream := &progressStream{ctx: t.Context(), sent: make(chan *apiv1.DrainProgress, 100)}
	ended = make(chan error, 1)
	go func() { ended <- s.Drain(&apiv1.DrainRequest{}, stream) }()
	return stream.sent, ended
}

// Drain ends when no flow is left; without peers that is the only way.
func TestDrain(t *testing.T) {
	r := newRig(t, false, 4096, "loadBalancer.mode: dsr")
	s := &Server{Gateway: func() *Gateway { return r.Gateway }}
	key := r.forward(r.flow(40000), 1)
	r.install(r.flow(40001)) // is not this node's
	r.run()
	sent, ended := drain(t, s)
	if p := <-sent; p.GetFlows() != 1 || p.GetActive() != 1 || p.GetUnsynchronised() != 1 || p.GetDone() ||
		!r.Draining() {
		t.Errorf("got %v", p)
	}
	if err := r.Datapath.NatEntries.Delete(key); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !r.Draining() {
		t.Error("in service again")
	}
	r.forward(r.flow(40000), 1)
	sent, ended = drain(t, s)
	<-sent
	if re, err := s.Resume(t.Context(), &apiv1.ResumeRequest{}); err != nil || !re.GetWasDraining() || r.Draining() {
		t.Errorf("got %v, %v, draining %t", re, err, r.Draining())
	}
	if err := <-ended; status.Code(err) != codes.Aborted {
		t.Errorf("got %v", err)
	}
}

// With peers that know all flows, Drain ends when none is active.
func TestDrainWithPeers(t *testing.T) {
	at := [2]string{freeAddress(t), freeAddress(t)}
	a := newRig(t, false, 4096, peering(at[0], at[1], trusted))
	b := newRig(t, false, 4096, peering(at[1], at[0], trusted))
	a.run()
	a.forward(a.flow(40000), 1)
	s := &Server{Gateway: func() *Gateway { return a.Gateway }}
	sent, ended := drain(t, s)
	p := <-sent
	if p.GetDone() || len(p.GetPeers()) != 1 || p.GetPeers()[0].GetConnected() {
		t.Errorf("got %v", p)
	}
	idle := a.flow(40000)
	idle.IdleMs = 60_000
	a.forward(idle, 1)
	b.run()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for p = range sent {
		if p.GetDone() {
			break
		}
	}
	if p.GetFlows() != 1 || p.GetActive() != 0 || !p.GetPeers()[0].GetConnected() || b.entries()[40000] == "" {
		t.Errorf("got %v", p)
	}
	eventually(t, "b knows that a is drained", "from connected, draining", func() string {
		for _, row := range b.Peers() {
			if row.Direction == From {
				return row.Direction + " " + row.TableRow()[3]
			}
		}
		return "none"
	})
}

// An agent that is no load balancer of its own is not drained: a cluster would restart it.
func TestDrainRefused(t *testing.T) {
	s := &Server{Gateway: func() *Gateway { return nil }}
	if _, err := s.Resume(t.Context(), &apiv1.ResumeRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v", err)
	}
	if _, ended := drain(t, s); status.Code(<-ended) != codes.FailedPrecondition {
		t.Error("it drains")
	}
}
