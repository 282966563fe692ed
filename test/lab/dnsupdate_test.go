package labtest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sync/errgroup"

	"myelin/l7/dns/message"
	"myelin/l7/proxy"
)

// TestDNSUpdate has 100 pods with a policy each that allows 100 names, of 10 addresses each. Each pod resolves its
// names, and an answer is to leave the proxy soon after it has come: its addresses are in the map then.
//
//	┌─ node1 ─────────────────────────┐
//	│ pod0 … pod99 ─► TUN ─► proxy    │
//	└───────────────────▲─────┬───────┘   measured: from ▲ to ┴
//	════════════════════╧═════╧════════ world: resolver
func TestDNSUpdate(t *testing.T) {
	const perName = 10
	pods, names := 10, 100
	if os.Getenv(envRecord) == "1" {
		pods = 100
	}
	s := setup{nodes: 1}
	s.fill()
	objects := []string{s.nodeYAML(1)}
	for i := range pods {
		name := fmt.Sprintf("pod%d", i)
		pod := strings.Replace(podYAML(name, 1), "{name: "+name+"}", "{name: "+name+", labels: {app: "+name+"}}", 1)
		objects = append(objects, pod, namesPolicy(i, names))
	}
	c := up(t, setup{nodes: 1, yaml: strings.Join(objects, "---\n")})
	c.serveNames(perName)
	watch := c.watchAnswers("node1")
	var g errgroup.Group
	begin, server := time.Now(), c.end("world").addr(4)
	for i := range pods {
		pod := c.end(fmt.Sprintf("pod%d", i))
		g.Go(func() error { // 500 names a second, of all pods in turn
			for n := i * names; n < (i+1)*names; n++ {
				time.Sleep(time.Until(begin.Add(time.Duration(n%names*pods+i) * 2 * time.Millisecond)))
				if _, err := resolveNumber(t.Context(), pod, server, n); err != nil {
					return fmt.Errorf("%s: resolve name %d: %w", pod.Name(), n, err)
				}
			}
			return nil
		})
	}
	check(t, g.Wait())
	times := watch.end()
	status := c.proxy("node1")
	if want := pods * names; status.Names != want || status.Addresses != want*perName || len(times) < want*9/10 {
		t.Errorf("%d names with %d addresses are known, %d answers were seen; want %d names", status.Names,
			status.Addresses, len(times), want)
	}
	c.acceptAll(443)
	for i := range pods {
		last := at(numbered(4, (i+1)*names*perName-1), 443) // of the pod's names
		if pod := fmt.Sprintf("pod%d", i); !connects(t.Context(), c.end(pod), last) {
			t.Errorf("%s does not reach %s", pod, last)
		}
	}
	if other := at(numbered(4, pods*names*perName-1), 443); connects(t.Context(), c.end("pod0"), other) {
		t.Errorf("pod0 reaches %s, which another pod has resolved", other)
	}
	slices.Sort(times)
	p99 := times[len(times)*99/100]
	t.Logf("%d answers were held for %s at the median, %s at most", len(times), times[len(times)/2],
		times[len(times)-1])
	if os.Getenv(envRecord) == "1" {
		record(t, result{"dns/update_p99_ms", float64(p99.Microseconds()) / 1000, "ms"})
	}
}

// namesPolicy allows pod i its own names.
func namesPolicy(i, names int) string {
	var list strings.Builder
	for n := range names {
		fmt.Fprintf(&list, "    - matchName: %d.%s\n", i*names+n, strings.TrimSuffix(dnsZone, "."))
	}
	return fmt.Sprintf(`apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: names%d}
spec:
  endpointSelector: {matchLabels: {app: pod%d}}
  egress:
  - toEntities: [world]
    toPorts: [{ports: [{port: "53"}], rules: {dns: [{matchPattern: "*"}]}}]
  - toFQDNs:
%s`, i, i, list.String())
}

// answerWatch sees the answers that go to the proxy, and come from it.
type answerWatch struct {
	handle *pcapgo.EthernetHandle
	times  chan []time.Duration
}

// watchAnswers watches the TUN device of a node's proxy, which the first policy with names has made.
func (c *cluster) watchAnswers(node string) *answerWatch {
	c.t.Helper()
	w := &answerWatch{times: make(chan []time.Duration, 1)}
	check(c.t, c.Node(node).Do(func() (err error) {
		w.handle, err = pcapgo.NewEthernetHandle(proxy.DeviceName)
		return err
	}))
	go func() { w.times <- w.read() }()
	return w
}

// read returns how long each answer was held: the kernel's time of the packet that comes out, minus that of the packet
// that went in.
func (w *answerWatch) read() (held []time.Duration) {
	type query struct {
		client netip.AddrPort
		id     uint16
	}
	entered := map[query]time.Time{}
	for {
		data, info, err := w.handle.ZeroCopyReadPacketData()
		if err != nil {
			return held // it is closed
		}
		p, ok := message.ReadPacket(data)
		if !ok || p.Source.Port() != 53 || len(p.Payload) < 2 {
			continue
		}
		q := query{p.Destination, binary.BigEndian.Uint16(p.Payload)}
		if at, seen := entered[q]; seen {
			held = append(held, info.Timestamp.Sub(at))
			delete(entered, q)
		} else {
			entered[q] = info.Timestamp
		}
	}
}

// end returns the times of all answers.
func (w *answerWatch) end() []time.Duration {
	time.Sleep(100 * time.Millisecond) // the last ones are in the socket's buffer
	w.handle.Close()
	return <-w.times
}
