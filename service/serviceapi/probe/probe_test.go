package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// servers are one of each kind on loopback, of a family.
type servers struct{ tcp, silent, http, grpc, closed netip.AddrPort }

func serve(t *testing.T, host string) servers {
	listen := func() net.Listener {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	at := func(l net.Listener) netip.AddrPort { return netip.MustParseAddrPort(l.Addr().String()) }
	silent, plain, closed := listen(), listen(), listen()
	closed.Close()
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/healthz" && r.Host == "shop.example":
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/nowhere", http.StatusFound)
		case r.URL.RequestURI() != "/" && r.URL.RequestURI() != "/q?x=1":
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	web.Listener.Close()
	web.Listener = plain
	web.Start()
	t.Cleanup(web.Close)
	s, h, l := grpc.NewServer(), health.NewServer(), listen()
	h.SetServingStatus("ready", grpc_health_v1.HealthCheckResponse_SERVING)
	h.SetServingStatus("ill", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(s, h)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return servers{tcp: at(plain), silent: at(silent), http: at(plain), grpc: at(l), closed: at(closed)}
}

// TestAsk asks real servers, each way and over both families.
func TestAsk(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		s := serve(t, host)
		for _, c := range []struct {
			name  string
			check Check
			at    netip.AddrPort
			want  string // empty: it serves
		}{
			{"tcp", Check{Kind: TCP}, s.tcp, ""},
			{"tcp, no server", Check{Kind: TCP}, s.closed, "connect: connection refused"},
			{"tcp, another port", Check{Kind: TCP, Port: s.tcp.Port()}, s.closed, ""},
			{"http", Check{Kind: HTTP}, s.http, ""},
			{"http, query", Check{Kind: HTTP, Path: "/q?x=1"}, s.http, ""},
			{"http, host", Check{Kind: HTTP, Path: "/healthz", Host: "shop.example"}, s.http, ""},
			{"http, other host", Check{Kind: HTTP, Path: "/healthz"}, s.http, "HTTP status 404"},
			{"http, redirect", Check{Kind: HTTP, Path: "/moved"}, s.http, ""},
			{"http, no server", Check{Kind: HTTP}, s.closed, "connect: connection refused"},
			{"http, silence", Check{Kind: HTTP, Timeout: 50 * time.Millisecond}, s.silent, "no answer within 50ms"},
			{"grpc", Check{Kind: GRPC}, s.grpc, ""},
			{"grpc, service", Check{Kind: GRPC, Service: "ready"}, s.grpc, ""},
			{"grpc, ill", Check{Kind: GRPC, Service: "ill"}, s.grpc, "gRPC health is NOT_SERVING"},
			{"grpc, unknown", Check{Kind: GRPC, Service: "other"}, s.grpc, "gRPC NotFound: unknown service"},
			{"grpc, no server", Check{Kind: GRPC}, s.closed, "connection refused"},
			{"grpc, silence", Check{Kind: GRPC, Timeout: 50 * time.Millisecond}, s.silent, "no answer within 50ms"},
			{"no kind", Check{}, s.tcp, "no such kind"},
		} {
			err := Run(t.Context(), c.check.WithDefaults(), c.at)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s of %s: got %v, want %q", c.name, host, err, c.want)
			}
			// What happens again is told in the same words.
			if again := Run(t.Context(), c.check.WithDefaults(), c.at); text(again) != text(err) {
				t.Errorf("%s of %s: %v, and then %v", c.name, host, err, again)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	good := Check{Kind: HTTP}.WithDefaults()
	for _, c := range []struct {
		change func(*Check)
		want   string
	}{
		{func(*Check) {}, ""},
		{func(c *Check) { c.Kind = "icmp" }, `kind: "icmp" is none of tcp, http, grpc`},
		{func(c *Check) { c.Kind, c.Path = TCP, "/x" }, "path: "},
		{func(c *Check) { c.Kind, c.Host = GRPC, "x" }, "host: "},
		{func(c *Check) { c.Service = "x" }, "service: "},
		{func(c *Check) { c.Path = "x" }, "path: "},
		{func(c *Check) { c.Path = "/a b" }, "path: "},
		{func(c *Check) { c.Path = "/\r\nX: y" }, "path: "},
		{func(c *Check) { c.Host = "a\r\nX: y" }, "host: "},
		{func(c *Check) { c.Interval = time.Millisecond }, "interval_ms: 1ms is not in 100ms..1h0m0s"},
		{func(c *Check) { c.Timeout = time.Hour }, "timeout_ms: "},
		{func(c *Check) { c.Via = Direct }, ""},
		{func(c *Check) { c.Via = "ipip" }, `via: "ipip" is none of datapath, direct`},
		{func(c *Check) { c.Rise = -1 }, "rise: "},
		{func(c *Check) { c.Fall = 101 }, "fall: "},
	} {
		check := good
		c.change(&check)
		var got []string
		check.Validate(func(field, reason string) { got = append(got, field+": "+reason) })
		if all := strings.Join(got, "; "); (all == "") != (c.want == "") || !strings.HasPrefix(all, c.want) {
			t.Errorf("got %q, want %q", all, c.want)
		}
	}
}

// TestScore: which answers change the state, with rise 2 and fall 3. A capital letter is a report.
func TestScore(t *testing.T) {
	bad, worse := errors.New("bad"), errors.New("worse")
	for answers, want := range map[string]string{
		"+":        "P",
		"-":        "F",
		"++++":     "Pppp",
		"+--+":     "PPpP", // the error is told before the state changes
		"+---":     "PPpF",
		"+---+-++": "PPpFFFFP",
		"-*-":      "FFF",
		"-++-":     "FFPP",
	} {
		s, got := score{rise: 2, fall: 3}, ""
		for _, a := range answers {
			told := s.note(Result{Err: map[rune]error{'+': nil, '-': bad, '*': worse}[a]})
			mark := map[bool]string{true: "p", false: "f"}[s.passing]
			if told {
				mark = strings.ToUpper(mark)
			}
			got += mark
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", answers, got, want)
		}
	}
}

// backends answer after 10 ms and count the checks.
// The first ones are early.
type backends struct{ asked, atATime, most, early atomic.Int32 }

func (b *backends) ask(ctx context.Context, _ int, j Job) Result {
	b.asked.Add(1)
	if n := b.atATime.Add(1); n > b.most.Load() {
		b.most.Store(n)
	}
	defer b.atATime.Add(-1)
	r := Result{Via: Direct, Early: b.asked.Load() <= b.early.Load()}
	if !pause(ctx, 10*time.Millisecond) {
		r.Err = ctx.Err()
	}
	if j.Check.Path == "/bad" {
		r.Err = errors.New("bad")
	}
	return r
}

// TestRunner runs in virtual time: how often is asked, how many at a time, and what ends.
func TestRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backends
		reports := make(chan string, 1000)
		const jobs, parallel = 40, 4
		r := NewRunner(Params[int]{
			Parallel: parallel, Run: b.ask,
			Report: func(key int, j Job, passing bool, last Result) {
				reports <- fmt.Sprintf("%d %s %t %v", key, j.Check.Path, passing, last.Err)
			},
		})
		good := Check{Kind: HTTP, Interval: time.Second}.WithDefaults()
		for i := range jobs {
			r.Set(i, &Job{Check: good})
		}
		time.Sleep(900 * time.Millisecond)
		if n := b.asked.Load(); n != jobs || len(reports) != jobs || b.most.Load() != parallel {
			t.Errorf("%d questions, %d reports, %d at a time", n, len(reports), b.most.Load())
		}
		for range jobs {
			<-reports
		}
		time.Sleep(10 * time.Second)
		if n := b.asked.Load(); n < 10*jobs || n > 12*jobs || len(reports) != 0 {
			t.Errorf("%d questions in eleven seconds, %d reports of nothing new", n, len(reports))
		}
		for i := range jobs {
			r.Set(i, nil)
		}
		bad := good
		bad.Path = "/bad"
		for _, check := range []Check{good, bad, bad} {
			r.Set(1, &Job{Check: check})
		}
		b.asked.Store(0)
		time.Sleep(900 * time.Millisecond)
		if got := <-reports; got != "1 /bad false bad" || b.asked.Load() != 1 {
			t.Errorf("got %q, %d questions", got, b.asked.Load())
		}
		if passed, failed := r.Counts(); failed != 1 || passed < 10*jobs {
			t.Errorf("counted %d good and %d bad answers", passed, failed)
		}
		r.Close()
		r.Set(2, &Job{Check: good})
		b.asked.Store(0)
		if time.Sleep(time.Minute); b.asked.Load() != 0 {
			t.Error("a closed runner goes on")
		}
	})
}

// TestRunnerEarly: a result that the datapath was not ready for is none, for a second.
func TestRunnerEarly(t *testing.T) {
	for _, c := range []struct{ early, least, most int32 }{{0, 1, 1}, {3, 4, 4}, {1000, 14, 18}} {
		synctest.Test(t, func(t *testing.T) {
			var b backends
			b.early.Store(c.early)
			asked := make(chan int32, 10)
			r := NewRunner(Params[int]{Parallel: 1, Run: b.ask, Report: func(int, Job, bool, Result) {
				asked <- b.asked.Load()
			}})
			defer r.Close()
			r.Set(1, &Job{Check: Check{Kind: TCP, Interval: time.Minute}.WithDefaults()})
			time.Sleep(2 * time.Second)
			if n := <-asked; n < c.least || n > c.most || len(asked) > 0 {
				t.Errorf("%d early results: the result is that of check %d, want %d to %d", c.early, n, c.least, c.most)
			}
		})
	}
}
