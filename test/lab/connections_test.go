package labtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// TestConnectionReports: while connections last, both nodes report what they carry, with and without conntrack entries,
// and every byte once.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│   a1    │  │   a2    │
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════
func TestConnectionReports(t *testing.T) {
	t.Parallel()
	for _, m := range []string{"native", "native-flows"} {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: modeNamed(m), pods: []string{"a"}, values: map[string]any{
				"bpf.monitorInterval": "1s", "hubble.eventBufferCapacity": 1<<14 - 1}})
			for _, f := range c.stack.families {
				c.reportsOf(t, f)
			}
		})
	}
}

// reportsOf has a1 and a2 exchange data, in parts some of which come after a report.
func (c *cluster) reportsOf(t *testing.T, f int) {
	t.Helper()
	const part, reply, parts = 100000, 1000, 3
	server := c.end("default/a2")
	l, err := server.listenTCP(t.Context(), at(server.addr(f), 0))
	check(t, err)
	defer l.Close()
	to := netip.MustParseAddrPort(l.Addr().String())
	client, err := c.end("default/a1").dialTCP(t.Context(), netip.AddrPort{}, to)
	check(t, err)
	defer client.Close()
	accepted, err := l.Accept()
	check(t, err)
	defer accepted.Close()
	port := netip.MustParseAddrPort(client.LocalAddr().String()).Port()
	for i := 1; i <= parts; i++ {
		var g errgroup.Group
		g.Go(func() error {
			_, err := client.Write(make([]byte, part))
			return err
		})
		_, err := io.ReadFull(accepted, make([]byte, part))
		check(t, err)
		_, err = accepted.Write(make([]byte, reply))
		check(t, err)
		_, err = io.ReadFull(client, make([]byte, reply))
		check(t, err)
		check(t, g.Wait())
		for _, node := range []string{"node1", "node2"} {
			eventually(t, fmt.Sprintf("%s reports part %d", node, i), 10*time.Second, func() error {
				sent, err := c.reported(t.Context(), node, to.Port(), port, false)
				answered, err2 := c.reported(t.Context(), node, to.Port(), port, true)
				if err != nil || err2 != nil || sent != uint64(i*part) || answered != uint64(i*reply) {
					return fmt.Errorf("%d bytes, answered by %d; %v, %v; want %d and %d", sent, answered, err, err2,
						i*part, i*reply)
				}
				return nil
			})
		}
	}
}

// reported is how many bytes of payload a node's reports have of a connection, in one direction.
func (c *cluster) reported(ctx context.Context, node string, server, client uint16, replies bool) (bytes uint64,
	err error,
) {
	from, to := client, server
	if replies {
		from, to = to, from
	}
	out, err := c.Node(node).Exec(ctx, "myelin", "observe", "--server", "unix://"+c.hubbleSocket(node), "--all", "-o",
		"jsonpb", "--protocol", "tcp", "--from-port", strconv.Itoa(int(from)), "--to-port", strconv.Itoa(int(to)),
		"--reply="+strconv.FormatBool(replies))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(out) {
		var flow any
		if err := json.Unmarshal([]byte(line), &flow); err != nil {
			return 0, fmt.Errorf("%w: %s", err, line)
		}
		for _, text := range valuesAt(flow, []string{"flow", "extensions", "value", "bytes"}) {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return 0, err
			}
			bytes += uint64(n)
		}
	}
	return bytes, nil
}
