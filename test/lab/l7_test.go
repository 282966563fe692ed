package labtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	l7control "myelin/l7/control"
)

// getOnly is the policy by HTTP request of seed document 004, as printed there.
const getOnly = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata:
  name: allow-get-only
spec:
  endpointSelector:
    matchLabels:
      app: api-server
  ingress:
  - fromEndpoints:
    - matchLabels:
        role: frontend
    toPorts:
    - ports:
      - port: "80"
        protocol: TCP
      rules:
        http:
        - method: GET
          path: "/api/public.*"
`

// l7Pods are a server and clients of it on both nodes.
func l7Pods() string {
	pod := func(name, labels string, node int) string {
		return strings.Replace(podYAML(name, node), "{name: "+name+"}", "{name: "+name+", labels: {"+labels+"}}", 1)
	}
	s := setup{}
	s.fill()
	return strings.Join([]string{s.nodeYAML(1), s.nodeYAML(2), pod("api", "app: api-server", 2),
		pod("far", "role: frontend", 1), pod("near", "role: frontend", 2), pod("other", "role: other", 1),
		pod("backend", "app: backend", 1)}, "---\n")
}

// seen is what the server saw of a request.
type seen struct{ client, method, path string }

// serveHTTP serves requests at all addresses of an end, and answers with what it saw of them.
func (c *cluster) serveHTTP(e end, port uint16) {
	c.t.Helper()
	for _, a := range e.addrs {
		l, err := e.listenTCP(c.t.Context(), at(a, port))
		check(c.t, err)
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			fmt.Fprintf(w, "%s %s %s", r.RemoteAddr, r.Method, r.URL.Path)
		})}
		go func() { _ = server.Serve(l) }() // ends with the listener
		c.t.Cleanup(func() { server.Close() })
	}
}

// client makes requests from an end, on connections that stay open between them.
func (c *cluster) client(e end) *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			conn, err := e.dialTCP(ctx, netip.AddrPort{}, netip.MustParseAddrPort(address))
			if err != nil {
				return nil, err
			}
			return conn, nil
		},
		MaxIdleConnsPerHost: 64,
	}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience(5 * time.Second)}
}

// request returns the status and what the server saw.
func request(client *http.Client, method string, to netip.AddrPort, path string) (int, seen, error) {
	r, err := http.NewRequest(method, "http://"+to.String()+path, nil)
	if err != nil {
		return 0, seen{}, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, seen{}, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	var s seen
	if answer.StatusCode == http.StatusOK {
		_, _ = fmt.Sscan(string(body), &s.client, &s.method, &s.path) // what it could not read stays empty
	}
	return answer.StatusCode, s, err
}

// TestL7HTTP is the policy by HTTP request of seed document 004: requests that it allows pass, from the client's own
// address, others get 403 on the same connection, and other clients no connection. A restart of the agent ends no
// connection, and a new proxy is there at once after the old one was killed.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ─────────────────┐
//	│ far (frontend)  other   │  │ near (frontend)  api:80 │
//	└───────────┬─────────────┘  └────────────┬────────────┘
//	════════════╧═════════════════════════════╧═════════════
func TestL7HTTP(t *testing.T) {
	t.Parallel()
	for _, m := range []string{"native", "legacy", "vxlan"} {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: modeNamed(m), yaml: l7Pods() + "---\n" + getOnly})
			c.serveHTTP(c.end("api"), 80)
			clients := map[string]*http.Client{}
			for _, name := range []string{"far", "near", "other"} {
				clients[name] = c.client(c.end(name))
			}
			c.checkGetOnly(clients, "at first")
			check(t, c.Node("node2").RestartAgent(t.Context()))
			c.checkGetOnly(clients, "after a restart of the agent")
			check(t, c.Node("node2").KillAgent(t.Context()))
			c.checkGetOnly(clients, "without an agent")
			check(t, c.Node("node2").StartAgent(t.Context(), nil))
			check(t, syscall.Kill(c.proxy("node2").PID, syscall.SIGKILL))
			for _, client := range clients {
				client.CloseIdleConnections() // they went with the proxy
			}
			eventually(t, "a new proxy", 10*time.Second, func() error {
				_, _, err := request(clients["far"], "GET", at(c.end("api").addr(4), 80), "/api/public")
				return err
			})
			c.checkGetOnly(clients, "after the proxy was killed")
		})
	}
}

// TestL7Change changes the rules of connections that are in use: from then on these have the new ones.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ─────────────────┐
//	│ far (frontend)          │  │ near (frontend)  api:80 │
//	└───────────┬─────────────┘  └────────────┬────────────┘
//	════════════╧═════════════════════════════╧═════════════
func TestL7Change(t *testing.T) {
	t.Parallel()
	c := up(t, setup{mode: modeNamed("native"), yaml: l7Pods()})
	c.apply("policy", getOnly)
	c.serveHTTP(c.end("api"), 80)
	to := at(c.end("api").addr(4), 80)
	for _, name := range []string{"far", "near"} {
		clients := map[string]*http.Client{name: c.client(c.end(name))}
		want := func(method string, status int, saw *seen) func() error {
			return func() error {
				got, s, err := request(clients[name], method, to, "/api/public")
				if err == nil && got != status {
					err = fmt.Errorf("%s from %s: %d, want %d", method, name, got, status)
				}
				*saw = s
				return err
			}
		}
		var before, after seen
		eventually(t, "the policy", 10*time.Second, want("DELETE", 403, &before))
		for range 3 { // an event loop relays the connection then
			check(t, want("GET", 200, &before)())
		}
		c.apply("policy", strings.Replace(getOnly, "method: GET", "method: GET|DELETE", 1))
		eventually(t, "a rule more", 10*time.Second, want("DELETE", 200, &after))
		if after.client != before.client {
			t.Errorf("the connection from %s became %s", before.client, after.client)
		}
		c.apply("policy", getOnly)
		eventually(t, "a rule less", 10*time.Second, want("DELETE", 403, &after))
		check(t, want("GET", 200, &after)())
		if after.client != before.client {
			t.Errorf("the connection from %s became %s", before.client, after.client)
		}
	}
}

// proxy is the status of a node's proxy.
func (c *cluster) proxy(node string) l7control.Status {
	c.t.Helper()
	s, err := l7control.NewClient(c.Node(node).RunDir()).Status(c.t.Context())
	check(c.t, err)
	return s
}

// checkGetOnly makes requests that getOnly allows, and some that it does not.
func (c *cluster) checkGetOnly(clients map[string]*http.Client, when string) {
	c.t.Helper()
	for _, f := range []int{4, 6} {
		to := at(c.end("api").addr(f), 80)
		for _, name := range []string{"far", "near"} {
			for _, r := range []struct {
				method, path string
				want         int
			}{{"GET", "/api/public", 200}, {"DELETE", "/api/public", 403}, {"GET", "/api/admin", 403},
				{"GET", "/api/public/x", 200}, {"GET", "/api/public/../admin", 403}} {
				status, saw, err := request(clients[name], r.method, to, r.path)
				if err != nil || status != r.want {
					c.t.Errorf("%s: %s %s from %s to %s: %d, %v; want %d", when, r.method, r.path, name, to, status,
						err, r.want)
				}
				if from := c.end(name).addr(f); status == 200 && netip.MustParseAddrPort(saw.client).Addr() != from {
					c.t.Errorf("%s: the server saw the client %s, not %s", when, saw.client, from)
				}
			}
		}
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		if conn, err := c.end("other").dialTCP(ctx, netip.AddrPort{}, to); err == nil {
			conn.Close()
			c.t.Errorf("%s: other connects to %s", when, to)
		} else if !errors.Is(err, context.DeadlineExceeded) && !silent(err) {
			c.t.Errorf("%s: other connects to %s: %v", when, to, err)
		}
		cancel()
	}
}
