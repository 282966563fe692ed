package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
	"myelin/config"
)

// TestGate: what each request gets of an agent that is starting, waits, and is ready.
func TestGate(t *testing.T) {
	const add, del, state, list = "/myelin.v1.CNI/Add", "/myelin.v1.CNI/Del", "/myelin.v1.CNI/Status",
		"/myelin.v1.Agent/Status"
	const upsert = "/myelin.v1.Services/Upsert"
	const refused = codes.FailedPrecondition
	waits := func(p *progress) { p.waitsFor("no Node", "") }
	for _, c := range []struct {
		name, method string
		prepare      func(*progress)
		code         uint32 // of CNI; 0: none
		status       codes.Code
		text         string
		after        time.Duration
	}{
		{"ready", add, (*progress).opens, 0, codes.OK, "", 0},
		{"not of CNI", list, func(*progress) {}, 0, codes.OK, "", 0},
		{"a Service, and the start waits", upsert, waits, 0, codes.Unavailable, "the agent is starting: no Node", 0},
		{"a Service, and they are off", upsert, (*progress).opens, 0, refused, "socketLB.enabled are false", 0},
		{"DEL is queued at once", del, func(*progress) {}, 0, codes.Unavailable, "starting", 0},
		{"DEL, and the start waits", del, waits, 0, codes.Unavailable, "starting", 0},
		{"ADD, and the start waits", add, waits, 11, refused, "the agent is starting: no Node", 0},
		{"STATUS, and the start waits", state, waits, 50, refused, "the agent is starting: no Node", 0},
		{"the start takes too long", add, func(*progress) {}, 11, refused, "datapath for 10", patience},
		{"ready soon", add, func(p *progress) { time.AfterFunc(time.Second, p.opens) }, 0, codes.OK, "", time.Second},
		{"an obstacle soon", add, func(p *progress) { time.AfterFunc(time.Second, func() { waits(p) }) }, 11,
			refused, "no Node", time.Second},
		{"an obstacle that goes", add, func(p *progress) {
			p.waitsFor("no Node", "")
			p.waitsFor("", "")
			time.AfterFunc(time.Second, p.opens)
		}, 0, codes.OK, "", time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{agent: agentWith(config.Default()), stopping: make(chan struct{})}
				s.agent.progress.starting("datapath")
				c.prepare(&s.agent.progress)
				begin := time.Now()
				_, err := s.gate(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: c.method},
					func(context.Context, any) (any, error) { return nil, nil })
				var code uint32
				for _, d := range status.Convert(err).Details() {
					if e, ok := d.(*apiv1.CNIError); ok {
						code = e.GetCode()
						if !strings.Contains(e.GetDetails(), c.text) {
							t.Errorf("details %q", e.GetDetails())
						}
					}
				}
				if status.Code(err) != c.status || code != c.code ||
					!strings.Contains(status.Convert(err).Message(), c.text) {
					t.Errorf("%v, CNI code %d", err, code)
				}
				if took := time.Since(begin); took != c.after {
					t.Errorf("answered after %v, want %v", took, c.after)
				}
			})
		})
	}
}

// TestProgress: an obstacle is told once, requests end with their context or the agent, and the next part begins
// without it.
func TestProgress(t *testing.T) {
	met := 0
	p := &progress{met: func() { met++ }}
	p.starting("own node")
	for _, c := range []struct {
		why   string
		fresh bool
	}{{"no Node", true}, {"no Node", false}, {"no podCIDRs", true}, {"", false}, {"no podCIDRs", true}} {
		if fresh := p.waitsFor(c.why, "help"); fresh != c.fresh {
			t.Errorf("%q is new: %t, want %t", c.why, fresh, c.fresh)
		}
	}
	if w := p.waiting(); met != 3 || w.Reason != "no podCIDRs" || w.Help != "help" || w.Part != "own node" ||
		w.Since.IsZero() {
		t.Errorf("met %d, %+v", met, w)
	}
	p.starting("tunnel")
	if w := p.waiting(); w.Reason != "" || w.Part != "tunnel" {
		t.Errorf("%+v", w)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := p.wait(ctx, nil); !errors.Is(err, errStarting) || !strings.Contains(err.Error(), "enough") {
		t.Error(err)
	}
	stopping := make(chan struct{})
	close(stopping)
	if err := p.wait(t.Context(), stopping); err == nil || errors.Is(err, errStarting) {
		t.Error(err)
	}
}
