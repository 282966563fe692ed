package labtest

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"myelin/bench/openloop"
	"myelin/bpf"
)

// rateService is the Service of b2 whose node port is asked.
const rateService = 31

// rateTest is a number of clients that open connections by one way, and close them first.
type rateTest struct {
	way     string // "NodePort" or "masquerade"
	family  int
	clients int // one, or many of IPv4
	rate    int
	over    time.Duration

	serverCloses bool // the server keeps ports in TIME_WAIT, not the clients
}

// rateTests are those of CI, which use a range of ports up at rates that a machine with other work can do; and with
// MYELIN_RECORD=1 ordinary rates for longer, and 10,000 a second.
func rateTests() (list []rateTest) {
	if os.Getenv(envRecord) != "1" {
		return []rateTest{
			{"NodePort", 4, 50, 8000, 5 * time.Second, false}, {"masquerade", 4, 50, 8000, 5 * time.Second, false},
			{"NodePort", 6, 1, 5000, 6 * time.Second, true}, {"masquerade", 6, 1, 5000, 6 * time.Second, true},
		}
	}
	for _, way := range []string{"NodePort", "masquerade"} {
		list = append(list, rateTest{way, 4, 1, 500, 20 * time.Second, false},
			rateTest{way, 6, 1, 800, 20 * time.Second, false},
			rateTest{way, 4, 1, 400, 28 * time.Second, true}, rateTest{way, 6, 1, 5000, 10 * time.Second, true},
			rateTest{way, 4, 50, 10_000, time.Minute, false})
	}
	return list
}

// TestConnectionRate has clients open new connections at a rate, to one backend by a node port with SNAT, and from pods
// by masquerade to one server in the world. Each needs a port of the node's for a moment, and none may fail for want of
// one.
//
//	┌─ node1 ────────────┐  ┌─ node2 ─┐
//	│ 50 pods ─┐         │  │   b2    │
//	└──────────┼─▲───────┘  └───▲─────┘
//	═══════════▼═╧══════════════╧═══ world: 50 clients of the node port; a server
func TestConnectionRate(t *testing.T) {
	failed := 0
	for _, r := range rateTests() { // one after the other: each wants the whole machine
		name := fmt.Sprintf("%s/ipv%d/%d clients/%d per second", r.way, r.family, r.clients, r.rate)
		if r.serverCloses {
			name += ", the server closes"
		}
		t.Run(name, func(t *testing.T) {
			report := r.run(t)
			if r.rate == 10_000 {
				failed += report.Failed + report.Slow
			}
		})
	}
	if os.Getenv(envRecord) == "1" {
		record(t, result{"nat/failed_10000_per_s", float64(failed), "connections"})
	}
}

func (r rateTest) run(t *testing.T) openloop.Report {
	c, clients, server, to := r.up(t)
	node := "node1"
	before := c.outcome(node, bpf.DatapathOutcomeDROP_NAT_NO_PORT)
	config := openloop.Config{Clients: clients, To: to, Rate: max(r.rate/slow(), 1), Duration: r.over,
		Timeout:      patience(3 * time.Second),
		ServerCloses: r.serverCloses}
	again := r.again(t, clients)
	report, err := openloop.Run(t.Context(), config)
	check(t, err)
	dropped := c.outcome(node, bpf.DatapathOutcomeDROP_NAT_NO_PORT) - before
	t.Logf("%v; the server accepted %d; %d packets dropped for want of a port", report, server.Accepted(), dropped)
	if report.Failed > 0 {
		t.Errorf("%d of %d connections failed: %v", report.Failed, report.Opened, report.Reasons)
		for _, n := range c.Nodes() {
			t.Logf("drops on %s: %s", n.Name(), strings.Join(c.drops(n.Name()), "; "))
		}
	}
	if again = r.again(t, clients) - again; again > report.Opened/100 {
		t.Errorf("%d SYNs were sent again: the server did not take the first one", again)
	}
	if dropped > 0 {
		t.Errorf("%d packets were dropped for want of a port", dropped)
	}
	if os.Getenv(envRecord) == "1" && report.Slow > 0 {
		t.Errorf("%d connections took more than 0.5 s, the slowest %s", report.Slow, report.Slowest)
	}
	least := 0.5 // of the rate, or nothing has been shown
	if os.Getenv(envRecord) == "1" {
		least = 0.98
	}
	if report.Rate < least*float64(config.Rate) {
		t.Errorf("%.0f connections a second were opened, want %d", report.Rate, config.Rate)
	}
	return report
}

// again is how many SYNs the clients have sent again: the kernel's counters of their namespaces.
func (r rateTest) again(t *testing.T, clients []openloop.Client) (sum int) {
	t.Helper()
	for i, client := range clients {
		if r.way == "NodePort" && i > 0 {
			break // all are in one
		}
		n, err := synRetransmissions(client.Place)
		check(t, err)
		sum += n
	}
	return sum
}

// up brings a cluster up, and returns its clients, the server, and the server's address as clients know it.
func (r rateTest) up(t *testing.T) (*cluster, []openloop.Client, *openloop.Server, netip.AddrPort) {
	s := setup{pods: []string{"b"}, values: perPacket(), outside: worldClients(r.clients)}
	if r.way == "masquerade" {
		s.fill()
		s.yaml = s.manifests()
		for i := range r.clients {
			s.yaml += "---\n" + podYAML(fmt.Sprintf("client%d", i), 1)
		}
	}
	c := up(t, s)
	var clients []openloop.Client
	world, b2 := c.end("world"), c.end("b2")
	listen, to := at(world.addr(r.family), 7777), at(world.addr(r.family), 7777)
	place := world
	if r.way == "NodePort" {
		c.apply("service", c.outsideYAML("rate", rateService, "", "b2"))
		listen, to, place = at(b2.addr(r.family), 8080), at(nodeAddr(1, r.family), 30000+rateService), b2
	}
	for i := range r.clients {
		if r.way == "NodePort" {
			clients = append(clients, openloop.Client{Place: world, Addr: worldClient(i, r.family)})
			continue
		}
		pod := c.end(fmt.Sprintf("client%d", i))
		clients = append(clients, openloop.Client{Place: pod, Addr: pod.addr(r.family)})
	}
	server, err := openloop.Listen(place, listen, r.serverCloses)
	check(t, err)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the server answers", 10*time.Second, func() error {
		conn, err := clients[0].Place.(end).dialTCP(t.Context(), netip.AddrPort{}, to)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return c, clients, server, to
}

// worldClient is the i-th address of a family that the world has for clients; there are many of IPv4 only.
func worldClient(i, family int) netip.Addr {
	if family == 6 {
		return netip.MustParseAddr("2001:db8:64::1")
	}
	return netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)})
}

func worldClients(n int) []netip.Addr {
	list := []netip.Addr{worldClient(0, 6)}
	for i := range n {
		list = append(list, worldClient(i, 4))
	}
	return list
}

// drops are the metrics of packets that the node has dropped, by reason.
func (c *cluster) drops(node string) (lines []string) {
	_, text, err := c.nodeGet(node, "/metrics")
	check(c.t, err)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "myelin_drop_count_total{") && !strings.HasSuffix(line, " 0\n") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
