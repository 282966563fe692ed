package labtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"

	l7control "myelin/l7/control"
)

// postOnly is getOnly for requests that clients do not repeat on their own.
func postOnly() string { return strings.Replace(getOnly, "method: GET", "method: POST", 1) }

// serveEcho serves HTTP/1.1 and HTTP/2 at all addresses of an end, and answers with the request's body.
func (c *cluster) serveEcho(e end, port uint16) {
	c.t.Helper()
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	for _, a := range e.addrs {
		l, err := e.listenTCP(c.t.Context(), at(a, port))
		check(c.t, err)
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: h2c.NewHandler(echo, &http2.Server{})}
		go func() { _ = server.Serve(l) }() // ends with the listener
		c.t.Cleanup(func() { server.Close() })
	}
}

// upgradeLoad sends requests all the time: on connections that stay open, on one for each, and as streams.
type upgradeLoad struct {
	all              sync.WaitGroup
	stopping         chan struct{}
	requests, failed atomic.Int64
}

func (c *cluster) upgradeLoad() *upgradeLoad {
	l := &upgradeLoad{stopping: make(chan struct{})}
	for _, name := range []string{"far", "near"} {
		from := c.end(name)
		short := c.client(from)
		short.Transport.(*http.Transport).DisableKeepAlives = true
		kinds := map[string]*http.Client{"keep-alive": c.client(from), "short": short, "HTTP/2": c.client2(from)}
		for kind, client := range kinds {
			for _, f := range []int{4, 6} {
				url := "http://" + at(c.end("api").addr(f), 80).String() + "/api/public"
				for range 2 {
					l.all.Go(func() { l.run(c.t, fmt.Sprintf("%s, %s to %s", kind, name, url), client, url) })
				}
			}
		}
	}
	return l
}

// client2 makes requests in HTTP/2 without TLS.
func (c *cluster) client2(e end) *http.Client {
	transport := &http2.Transport{AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, _, address string, _ *tls.Config) (net.Conn, error) {
			return e.dialTCP(ctx, netip.AddrPort{}, netip.MustParseAddrPort(address))
		}}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience(5 * time.Second)}
}

func (l *upgradeLoad) run(t *testing.T, what string, client *http.Client, url string) {
	for {
		select {
		case <-l.stopping:
			return
		case <-time.After(time.Millisecond):
		}
		l.requests.Add(1)
		// The body has a type that the client cannot read again.
		answer, err := client.Post(url, "text/plain", io.MultiReader(strings.NewReader("body")))
		if err == nil {
			var body []byte
			body, err = io.ReadAll(answer.Body)
			answer.Body.Close()
			if err == nil && (answer.StatusCode != http.StatusOK || string(body) != "body") {
				err = fmt.Errorf("%s, %q", answer.Status, body)
			}
		}
		if err != nil && l.failed.Add(1) <= 10 {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func (l *upgradeLoad) stop() (requests, failed int64) {
	close(l.stopping)
	l.all.Wait()
	return l.requests.Load(), l.failed.Load()
}

// TestProxyUpgrade replaces the proxy by one of another program under load, as its DaemonSet does: the new one is
// started, and the old one ended when the new one is ready. No request fails, and connections that are open get the
// rules that come afterwards.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ─────────────────┐
//	│ far (frontend)          │  │ near (frontend)  api:80 │
//	└───────────┬─────────────┘  └────────────┬────────────┘
//	════════════╧═════════════════════════════╧═════════════
func TestProxyUpgrade(t *testing.T) {
	t.Parallel()
	versions := []string{filepath.Join(binDir(), "myelin"), nextBinary(t)}
	c := up(t, setup{mode: modeNamed("native"), yaml: l7Pods(),
		values: map[string]any{"myelin.proxy.supervise": false}})
	end := c.startProxy(versions[0])
	c.apply("policy", postOnly())
	c.upgradeUnderLoad(func(i int) {
		old := end
		end = c.startProxy(versions[(i+1)%2])
		old()
	})
	end()
}

// upgradeUnderLoad has requests sent while the proxy is replaced several times.
func (c *cluster) upgradeUnderLoad(upgrade func(i int)) {
	c.t.Helper()
	c.serveEcho(c.end("api"), 80)
	client := c.client(c.end("far"))
	eventually(c.t, "the policy", 20*time.Second, func() error { return c.wantStatus(client, "DELETE", 403) })
	check(c.t, c.wantStatus(client, "POST", 200))
	l := c.upgradeLoad()
	for i := range 3 {
		time.Sleep(time.Second)
		upgrade(i)
	}
	time.Sleep(2 * time.Second)
	requests, failed := l.stop()
	c.t.Logf("%d of %d requests failed", failed, requests)
	if requests == 0 || failed > 0 {
		c.t.Errorf("%d of %d requests failed", failed, requests)
	}
	c.apply("policy", strings.Replace(postOnly(), "/api/public", "/api/other", 1))
	eventually(c.t, "other rules", 20*time.Second, func() error { return c.wantStatus(client, "POST", 403) })
}

// wantStatus makes a request in both families.
func (c *cluster) wantStatus(client *http.Client, method string, want int) error {
	for _, f := range []int{4, 6} {
		status, _, err := request(client, method, at(c.end("api").addr(f), 80), "/api/public")
		if err == nil && status != want {
			err = fmt.Errorf("%s: status %d, want %d", method, status, want)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startProxy starts a proxy of node2 and waits until it has taken over. The result ends it, as kubelet does.
func (c *cluster) startProxy(program string) (end func()) {
	c.t.Helper()
	cmd, ended := c.proxyCommand(program)
	return func() {
		c.t.Helper()
		check(c.t, cmd.Process.Signal(syscall.SIGTERM))
		select {
		case err := <-ended:
			check(c.t, err)
		case <-time.After(patience(90 * time.Second)):
			c.t.Errorf("process %d has not ended", cmd.Process.Pid)
		}
	}
}

// proxyCommand starts a proxy of node2 and waits until it has taken over. The channel gets how it ended.
func (c *cluster) proxyCommand(program string) (*exec.Cmd, <-chan error) {
	c.t.Helper()
	node := c.Node("node2")
	client := l7control.NewClient(node.RunDir())
	before, _ := client.Status(c.t.Context()) // none runs at first
	cmd := node.Command(c.t.Context(), program, "proxy", "--run-dir", node.RunDir(), "--bpf-root", node.BPFRoot())
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	check(c.t, node.Start(cmd))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // an error says that it has ended
		if c.t.Failed() {
			c.t.Logf("proxy %d: %s", cmd.Process.Pid, log.String())
		}
	})
	eventually(c.t, "a proxy that answers", 20*time.Second, func() error {
		now, err := l7control.NewClient(node.RunDir()).Status(c.t.Context())
		if err == nil && now.Same(&before) {
			err = fmt.Errorf("process %d answers still", now.PID)
		}
		return err
	})
	return cmd, ended
}
