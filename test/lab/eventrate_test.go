package labtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"golang.org/x/sync/errgroup"

	"myelin/api"
	"myelin/bpf"
)

// How many events a second the datapath sends, and for how long.
const (
	eventRate    = 100000
	eventSeconds = 12
)

// TestEventRate has the datapath send 100,000 events a second to an agent that makes metrics of them, and that a client
// follows. Every event is recorded, or counted as lost.
//
// Of SYNs to a port on which nothing listens, the SYN and the RST are an event each:
//
//	┌─ node1 ───────────────────┐
//	│ a1 ═══ IPv4: SYN, RST ══ b1 │
//	│ b1 ═══ IPv6: SYN, RST ══ a1 │
//	└───────────────────────────┘
func TestEventRate(t *testing.T) {
	c := up(t, setup{nodes: 1, values: map[string]any{
		"hubble.metrics.enabled": []string{"flow", "drop", "tcp", "port-distribution"},
		// Memory for the events of 0.3 s if one CPU has them all.
		"hubble.eventBufferCapacity": 1<<15 - 1,
		// The limit for each CPU is 100,000: which CPUs the packets are on is not what is measured.
		"bpf.events.default.rateLimit": 1 << 20, "bpf.events.default.burstLimit": 1 << 20,
	}})
	f := c.followAgent(t, "node1")
	before := c.quiet(t, f)
	began := time.Now()
	sent := c.sendSYNs(t, eventRate, eventSeconds)
	took := time.Since(began)
	after := c.quiet(t, f)
	m := after.minus(before)
	t.Logf("%d packets in %v: %+v", sent, took.Round(time.Millisecond), m)

	if m.emitted != 2*sent {
		t.Errorf("of %d SYNs, the datapath has forwarded %d packets, want as many and an RST for each", sent, m.emitted)
	}
	if m.emitted != m.recorded+m.lost {
		t.Errorf("%d events: %d recorded, %d lost", m.emitted, m.recorded, m.lost)
	}
	// The entries in the ring that tell of losses, one a second at most, are overwritten as flows are.
	if notes := m.followed + m.overtaken - m.recorded; notes > 2*eventSeconds {
		t.Errorf("of %d flows, the client has %d, and was told that %d are lost", m.recorded, m.followed, m.overtaken)
	}
	if m.told > m.lost || (m.overtaken == 0 && m.told != m.lost) {
		t.Errorf("the client was told that the kernel lost %d events, want %d", m.told, m.lost)
	}
	// What the metrics have missed is also counted. They are told of losses by entries in the ring, too.
	if missed := m.recorded - m.measured; m.overwritten < m.overtaken+missed ||
		m.overwritten > m.overtaken+missed+2*eventSeconds {
		t.Errorf("the agent has counted %d flows overwritten before they were read, the client was told %d, and the "+
			"metrics have %d of %d", m.overwritten, m.overtaken, m.measured, m.recorded)
	}
	if m.refused > m.lost {
		t.Errorf("the datapath could not send %d events, the agent has counted %d as lost", m.refused, m.lost)
	}
	rate, share := float64(m.emitted)/took.Seconds(), 100*float64(m.lost)/float64(m.emitted)
	if rate < 0.9*eventRate/float64(slow()) {
		t.Errorf("%.0f events a second, want %d", rate, eventRate)
	}
	if share >= 0.1 {
		t.Errorf("%.3f %% of the events are lost, want less than 0.1", share)
	}
	record(t, result{"flow/lost_share_100k", share, "%"}, result{"flow/events_s", rate, "1/s"},
		result{"flow/cpu_us_per_event", float64(m.cpu.Microseconds()) / float64(m.emitted), "us"},
		result{"flow/followed_share_100k", 100 * float64(m.followed) / float64(m.recorded), "%"})
}

// eventCounts are what an agent and its datapath have counted.
type eventCounts struct {
	emitted         uint64 // packets that the datapath forwarded from pods
	refused         uint64 // events that it could not send
	lost            uint64 // those, and events that were overwritten, as the agent's metric has it
	overwritten     uint64 // flows that were overwritten before they were read, by the same metric
	recorded        uint64 // flows that the agent has seen
	measured        uint64 // flows that its metrics are made of
	followed        uint64 // flows that the client has received
	overtaken, told uint64 // events lost to the client in the agent, and in the kernel
	cpu             time.Duration
}

func (a eventCounts) minus(b eventCounts) eventCounts {
	return eventCounts{a.emitted - b.emitted, a.refused - b.refused, a.lost - b.lost, a.overwritten - b.overwritten,
		a.recorded - b.recorded, a.measured - b.measured, a.followed - b.followed,
		a.overtaken - b.overtaken, a.told - b.told, a.cpu - b.cpu}
}

// agentFollower counts what a client that follows an agent receives.
type agentFollower struct {
	client                    observerpb.ObserverClient
	followed, overtaken, told atomic.Uint64
}

func (c *cluster) followAgent(t *testing.T, node string) *agentFollower {
	t.Helper()
	conn, err := api.Dial(c.hubbleSocket(node))
	check(t, err)
	ctx, stop := context.WithCancel(t.Context())
	f, done := &agentFollower{client: observerpb.NewObserverClient(conn)}, make(chan struct{})
	stream, err := f.client.GetFlows(ctx, &observerpb.GetFlowsRequest{Follow: true})
	check(t, err)
	go func() {
		defer close(done)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			switch l := r.GetLostEvents(); {
			case l == nil:
				f.followed.Add(1)
			case l.GetSource() == flowpb.LostEventSource_HUBBLE_RING_BUFFER:
				f.overtaken.Add(l.GetNumEventsLost())
			default:
				f.told.Add(l.GetNumEventsLost())
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
		conn.Close()
	})
	return f
}

// quiet returns the counts when they have not changed for two seconds, by when the agent has noted its losses.
func (c *cluster) quiet(t *testing.T, f *agentFollower) (counts eventCounts) {
	t.Helper()
	since := time.Now()
	eventually(t, "there are no more events", 60*time.Second, func() error {
		now := c.eventCounts(t, f)
		cpu := now.cpu
		now.cpu = counts.cpu
		if now != counts {
			since = time.Now()
		}
		counts = now
		counts.cpu = cpu
		if time.Since(since) < 2*time.Second {
			return fmt.Errorf("%+v", counts)
		}
		return nil
	})
	return counts
}

func (c *cluster) eventCounts(t *testing.T, f *agentFollower) (n eventCounts) {
	t.Helper()
	m := c.pinnedMap("node1", "cpus")
	defer m.Close()
	var cpus []bpf.DatapathCpu
	check(t, m.Lookup(uint32(0), &cpus))
	for _, cpu := range cpus {
		n.refused += cpu.TraceBudget.Lost + cpu.DropBudget.Lost
	}
	n.emitted = c.outcomeAt("node1", bpf.DatapathHookHOOK_FROM_POD, bpf.DatapathOutcomeFORWARD_POD) +
		c.outcomeAt("node1", bpf.DatapathHookHOOK_TO_POD, bpf.DatapathOutcomeFORWARD_POD)
	s, err := f.client.ServerStatus(t.Context(), &observerpb.ServerStatusRequest{})
	check(t, err)
	n.recorded = s.GetSeenFlows()
	families, err := c.hubbleMetrics("node1")
	check(t, err)
	for _, m := range families["hubble_flows_processed_total"].GetMetric() {
		n.measured += uint64(m.GetCounter().GetValue())
	}
	n.followed, n.overtaken, n.told = f.followed.Load(), f.overtaken.Load(), f.told.Load()
	n.lost = c.lostMetric("node1", "perf_event_ring_buffer")
	n.overwritten = c.lostMetric("node1", "hubble_ring_buffer")
	n.cpu = processTime(t, c.Node("node1").AgentProcess().PID)
	return n
}

// lostMetric is the agent's own count of the events lost in a source.
func (c *cluster) lostMetric(node, source string) uint64 {
	var list []struct {
		Name   string
		Labels map[string]string
		Value  float64
	}
	c.jsonCLI(&list, node, "metrics", "list")
	for _, row := range list {
		if row.Name == "myelin_hubble_lost_events_total" && row.Labels["source"] == source {
			return uint64(row.Value)
		}
	}
	return 0
}

// processTime is the CPU time of a process, proc_pid_stat(5).
func processTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "stat"))
	check(t, err)
	_, after, _ := strings.Cut(string(text), ") ") // utime and stime are fields 14 and 15, in 1/100 s
	fields := strings.Fields(after)
	var user, system int64
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	check(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// sendSYNs sends them between two pods in both directions, one of each family, at half a rate of events per second. It
// returns how many.
func (c *cluster) sendSYNs(t *testing.T, rate, seconds int) uint64 {
	t.Helper()
	const closed = 9
	var sent atomic.Uint64
	var g errgroup.Group
	for from, to := range map[string]string{"a1": "b1", "b1": "a1"} {
		f := map[string]int{"a1": 4, "b1": 6}[from]
		src, dst := c.end(from).addr(f), c.end(to).addr(f)
		sender, err := c.end(from).raw(dst)
		check(t, err)
		t.Cleanup(func() { sender.Close() })
		g.Go(func() error {
			n, err := paced(rate/4*seconds, time.Duration(seconds)*time.Second, func(i int) error {
				return sender.send(synPacket(at(src, uint16(1024+i%60000)), at(dst, closed), uint32(i)))
			})
			sent.Add(uint64(n))
			return err
		})
	}
	check(t, g.Wait())
	return sent.Load()
}
