package ipfix

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/hubble/consumer"
)

func at() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC) }

func tcp(source, destination string) *flowpb.Flow {
	return &flowpb.Flow{
		Time: timestamppb.New(at()), Verdict: flowpb.Verdict_FORWARDED, Type: flowpb.FlowType_L3_L4,
		IP:               &flowpb.IP{Source: source, Destination: destination},
		TrafficDirection: flowpb.TrafficDirection_EGRESS, TraceReason: flowpb.TraceReason_NEW,
		L4: &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{SourcePort: 40000, DestinationPort: 443,
			Flags: &flowpb.TCPFlags{SYN: true, CWR: true}}}},
	}
}

func exporter(t *testing.T, to string) *Exporter {
	t.Helper()
	e, err := New(Params{Collector: to, TemplateInterval: time.Hour, Node: "n1", Now: at,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func flows(list ...*flowpb.Flow) (items []consumer.Item) {
	for _, f := range list {
		items = append(items, consumer.Item{Flow: f})
	}
	return items
}

// listenUDP returns a socket, and what reads all that it has.
func listenUDP(t *testing.T) (string, func(*collector)) {
	t.Helper()
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return "udp://" + socket.LocalAddr().String(), func(c *collector) {
		t.Helper()
		buffer := make([]byte, 65536)
		for {
			if err := socket.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, err := socket.Read(buffer)
			if err != nil {
				return
			}
			if err := c.read(bytes.Clone(buffer[:n])); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// check compares elements of a record with hexadecimal text.
func check(t *testing.T, r map[uint16][]byte, want map[uint16]string) {
	t.Helper()
	for id, text := range want {
		if got := hex.EncodeToString(r[id]); got != text {
			t.Errorf("element %d is %q, want %q", id, got, text)
		}
	}
}

func TestRecords(t *testing.T) {
	to, read := listenUDP(t)
	e := exporter(t, to)
	nat := tcp("10.0.0.1", "192.0.2.1")
	nat.IP.SourceXlated = "198.51.100.7"
	denied := tcp("fd00::1", "fd00::2")
	denied.Verdict, denied.DropReasonDesc = flowpb.Verdict_DROPPED, flowpb.DropReason_POLICY_DENIED
	denied.TrafficDirection = flowpb.TrafficDirection_INGRESS
	ping := tcp("fd00::1", "fd00::2")
	ping.L4 = &flowpb.Layer4{Protocol: &flowpb.Layer4_ICMPv6{ICMPv6: &flowpb.ICMPv6{Type: 128, Code: 1}}}
	ping.TrafficDirection = flowpb.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN
	counted := tcp("10.0.0.1", "192.0.2.1")
	x, err := anypb.New(&structpb.Struct{Fields: map[string]*structpb.Value{
		"packets": structpb.NewNumberValue(258), "bytes": structpb.NewNumberValue(1 << 33)}})
	if err != nil {
		t.Fatal(err)
	}
	counted.Extensions = x
	l7 := tcp("10.0.0.1", "192.0.2.1")
	l7.Type = flowpb.FlowType_L7
	e.batch(append(flows(nat, denied, ping, counted, l7, &flowpb.Flow{}),
		consumer.Item{Lost: &flowpb.LostEvent{NumEventsLost: 9}}))
	c := newCollector()
	read(c)
	if len(c.records) != 4 || len(c.messages) != 1 || len(c.optional) != 1 {
		t.Fatalf("%d records and %d of options in %d messages", len(c.records), len(c.optional), len(c.messages))
	}
	if h := c.messages[0]; h.time != uint32(at().Unix()) || h.sequence != 0 || h.domain == 0 {
		t.Errorf("header %+v", h)
	}
	when := hex.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(at().UnixMilli())))
	check(t, c.records[0], map[uint16]string{152: when, 153: when, 8: "0a000001", 12: "c0000201", 225: "c6336407",
		7: "9c40", 11: "01bb", 4: "06", 61: "01", 6: "0082", 32: "0000", 89: "40", 233: "01", 1: "", 27: ""})
	check(t, c.records[1], map[uint16]string{27: "fd" + strings.Repeat("0", 29) + "1",
		28: "fd" + strings.Repeat("0", 29) + "2", 281: "fd" + strings.Repeat("0", 29) + "1", 61: "00", 89: "81",
		233: "03", 8: ""})
	check(t, c.records[2], map[uint16]string{4: "3a", 139: "8001", 61: "ff", 7: "0000"})
	check(t, c.records[3], map[uint16]string{2: "0000000000000102", 1: "0000000200000000", 225: "0a000001"})
	check(t, c.optional[0], map[uint16]string{165: "0000000000000009"})
	if s := e.State(); s.Written != 4 || s.Lost != 0 || s.Err != nil {
		t.Errorf("state %+v", s)
	}
}

// TestMessages: messages are bounded, and the sequence numbers are those of RFC 7011 section 3.1.
func TestMessages(t *testing.T) {
	to, read := listenUDP(t)
	e, c := exporter(t, to), newCollector()
	for range 3 {
		var list []*flowpb.Flow
		for i := range 100 {
			if i%3 == 0 {
				list = append(list, tcp("fd00::1", "fd00::2"))
			}
			list = append(list, tcp("10.0.0.1", "192.0.2.1"))
		}
		e.batch(flows(list...))
	}
	read(c)
	if len(c.records) != 3*134 || len(c.messages) < 10 {
		t.Fatalf("%d records in %d messages", len(c.records), len(c.messages))
	}
	var sum uint32
	for i, m := range c.messages {
		if m.length > maxUDP || m.sequence != sum {
			t.Errorf("message %d: %+v, want the sequence number %d and at most %d bytes", i, m, sum, maxUDP)
		}
		sum += uint32(m.data)
	}
}

// TestTemplatesAgain: a collector that starts later can read what comes after the interval, and what a new session
// begins with.
func TestTemplatesAgain(t *testing.T) {
	to, read := listenUDP(t)
	e, now := exporter(t, to), at()
	e.Now = func() time.Time { return now }
	sent := func() int { // how many templates come with a flow
		t.Helper()
		c := newCollector()
		for _, f := range templates()[0].fields { // known from before, so that the record can be read
			c.templates[template4] = append(c.templates[template4], element{f.id, f.length})
		}
		e.batch(flows(tcp("10.0.0.1", "192.0.2.1")))
		read(c)
		if len(c.records) != 1 {
			t.Fatalf("%d records", len(c.records))
		}
		return len(c.templates)
	}
	for i, step := range []struct {
		after time.Duration
		want  int
	}{{0, 5}, {time.Hour - 1, 1}, {1, 5}, {1, 1}} {
		now = now.Add(step.after)
		if got := sent(); got != step.want {
			t.Errorf("step %d: %d templates, want %d", i, got, step.want)
		}
	}
	e.conn.Close()
	e.conn, now = nil, now.Add(retryWait)
	if got := sent(); got != 5 {
		t.Errorf("a new session begins with %d templates", got)
	}
}

func TestTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	e := exporter(t, "tcp://"+listener.Addr().String())
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { e.Run(ctx) })
	for range 1000 {
		e.Consume(tcp("10.0.0.1", "192.0.2.1"))
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	stop()
	stream, err := io.ReadAll(conn) // until Run has closed it
	if err != nil {
		t.Fatal(err)
	}
	group.Wait()
	c := newCollector()
	for len(stream) > 0 {
		length := binary.BigEndian.Uint16(stream[2:])
		if err := c.read(stream[:length]); err != nil {
			t.Fatal(err)
		}
		stream = stream[length:]
	}
	if len(c.records) != 1000 || e.State().Written != 1000 {
		t.Errorf("%d records, state %+v", len(c.records), e.State())
	}
}

func TestNoCollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	e, now := exporter(t, "tcp://"+address), at()
	e.Now = func() time.Time { return now }
	e.batch(flows(tcp("10.0.0.1", "192.0.2.1"), tcp("10.0.0.1", "192.0.2.1")))
	e.batch(flows(tcp("10.0.0.1", "192.0.2.1")))
	if s := e.State(); s.Lost != 3 || s.Err == nil || !strings.Contains(s.Err.Error(), address) {
		t.Errorf("state %+v", s)
	}
	if listener, err = net.Listen("tcp", address); err != nil {
		t.Skip("the port was taken meanwhile: ", err)
	}
	defer listener.Close()
	now = now.Add(retryWait)
	e.batch(flows(tcp("10.0.0.1", "192.0.2.1")))
	if s := e.State(); s.Lost != 3 || s.Err != nil || s.Written != 1 {
		t.Errorf("state %+v with a collector", s)
	}
}

func TestParseCollector(t *testing.T) {
	for text, want := range map[string]string{"192.0.2.1:4739": "udp 192.0.2.1:4739", "tcp://c.test:1": "tcp c.test:1",
		"udp://[fd00::1]:4739": "udp [fd00::1]:4739", "sctp://a:1": "", "a": "", ":4739": "", "a:": ""} {
		network, address, err := ParseCollector(text)
		if got := strings.TrimSpace(network + " " + address); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}
