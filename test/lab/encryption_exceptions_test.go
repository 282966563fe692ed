package labtest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestEncryptionExceptions compares what the capture finds in plain text, without strict mode, with the table of
// docs/encryption.md. What clients outside send counts on the backend's node only.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐
//	│ a1          │  │ a2          │
//	└──────┬──────┘  └──────┬──────┘
//	═══════╧═══ capture ════╧═══════ world
func TestEncryptionExceptions(t *testing.T) {
	m := encryptionModes(wireGuard())[0]
	if why := noEncryption(m); why != "" {
		t.Skip(why)
	}
	page, err := os.ReadFile("../../docs/encryption.md")
	check(t, err)
	rows := regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`).FindAllStringSubmatch(string(page), -1)
	documented := map[string]bool{} // rows, and whether packets are encrypted
	for _, row := range rows[1:] {
		documented[row[1]+" → "+row[2]] = strings.HasPrefix(row[3], "yes")
	}
	for _, how := range []string{"snat", "dsr"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			values := perPacket()
			maps.Copy(values, map[string]any{"loadBalancer.mode": how})
			c := up(t, setup{mode: m, pods: []string{"a"}, values: values})
			c.apply("services", c.outsideYAML("web", webService, "", "a2"))
			c.encrypted()
			found := c.inPlainText(how)
			for row, plain := range found {
				if encrypted, ok := documented[row]; !ok || encrypted == plain {
					t.Errorf("%s: plain text %v; documented %v, encrypted %v", row, plain, ok, encrypted)
				}
			}
			if len(found) != len(documented)-1 { // the other way of clients
				t.Errorf("%d ways are documented, and %d were used", len(documented), len(found))
			}
		})
	}
}

// inPlainText uses all ways, and reports by row of the table whether the capture has found what was sent.
func (c *cluster) inPlainText(how string) map[string]bool {
	client := map[string]string{"snat": "client outside, SNATed by a node",
		"dsr": "client outside, by direct server return"}
	const aPod = "pod of another node, also as a Service's backend"
	rows := []string{"pod → " + aPod, "pod → another node, its pods on the host's network, its node ports",
		"node → " + aPod, client[how] + " → backend on another node", "node → another node"}
	texts := make([][]byte, len(rows))
	for i := range rows {
		texts[i] = marker(fmt.Sprintf("way %d", i))
	}
	tap := c.tap(texts...)
	for _, f := range c.stack.families {
		service, ports := serviceAddr(webService, f), func(node int) func(from string, text []byte) error {
			return func(from string, text []byte) error {
				dst := nodeAddr(node, f)
				return c.talkBy(from, "a2", f, at(dst, 30500+webService), at(dst, 30000+webService), text)
			}
		}
		for i, send := range []func() error{
			func() error {
				return errors.Join(c.talk("a1", "a2", f, texts[0]),
					c.talkBy("a1", "a2", f, at(service, 53), at(service, 80), texts[0]))
			},
			func() error { return errors.Join(c.talk("a1", "node2", f, texts[1]), ports(2)("a1", texts[1])) },
			func() error { return errors.Join(c.talk("node1", "a2", f, texts[2]), c.callWeb("node1", f, texts[2])) },
			func() error { return ports(1)("world", texts[3]) },
			func() error { return c.talk("node1", "node2", f, texts[4]) },
		} {
			eventually(c.t, fmt.Sprintf("IPv%d %s", f, rows[i]), 20*time.Second, send)
		}
	}
	tap.end()
	found := map[string]bool{}
	for i, row := range rows {
		if found[row] = tap.seen(i) > 0; strings.HasPrefix(row, "client") {
			found[row] = tap.seenAt("node2", i) > 0
		}
	}
	return found
}
