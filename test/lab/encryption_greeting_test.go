package labtest

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"myelin/encryption"
	"myelin/encryption/userspace"
)

// TestEncryptionGreeting has a node lose its sessions, as by a reboot with the same key, while another one sends to it
// and gets no answers: WireGuard there would try for 15 seconds until it makes another session. The node that has lost
// them makes it at once.
//
//	┌─ node1 ─────┐  ┌─ node2 ───────────────┐
//	│ a1 → wg0    │→→│ wg0 (made anew) → a2  │
//	└─────────────┘  └───────────────────────┘
func TestEncryptionGreeting(t *testing.T) {
	c := up(t, setup{mode: encryptionModes(wireGuard())[0]})
	c.encrypted()
	const limit = 10 * time.Second // also in the VM: less than WireGuard takes by itself
	arrived := c.oneWay("a1", "a2")
	eventually(t, "the first packets", 20*time.Second, func() error { return arrived.since(time.Second) })
	time.Sleep(time.Second) // the key is older than the next device
	c.losesSessions("node2")
	lost := time.Now()
	eventually(t, "packets again", time.Minute, func() error {
		if last := arrived.last(); !last.After(lost.Add(100 * time.Millisecond)) {
			return fmt.Errorf("the last one arrived %s before", lost.Sub(last))
		}
		return nil
	})
	gap := time.Since(lost)
	t.Logf("packets arrived again after %s", gap.Round(10*time.Millisecond))
	if gap > limit {
		t.Errorf("packets arrived again after %s, want at most %s", gap, limit)
	}
}

// losesSessions ends what has a node's sessions: the process that encrypts, or the kernel's device. The agent makes
// another one.
func (c *cluster) losesSessions(node string) {
	c.t.Helper()
	client := userspace.Client{RunDir: c.Node(node).RunDir()}
	about, err := client.About(encryption.DeviceName)
	if errors.Is(err, fs.ErrNotExist) {
		_, err := c.Node(node).Exec(c.t.Context(), "ip", "link", "delete", encryption.DeviceName)
		check(c.t, err)
		return
	}
	check(c.t, err)
	process, err := os.FindProcess(about.PID)
	check(c.t, err)
	check(c.t, process.Kill())
}

// lastArrival is when packets arrived.
type lastArrival struct{ at atomic.Int64 }

func (a *lastArrival) last() time.Time { return time.Unix(0, a.at.Load()) }

func (a *lastArrival) since(d time.Duration) error {
	if late := time.Since(a.last()); late > d {
		return fmt.Errorf("the last packet arrived %s ago", late)
	}
	return nil
}

// oneWay sends a packet every 20 ms, which is not answered, until the test ends.
func (c *cluster) oneWay(from, to string) *lastArrival {
	c.t.Helper()
	family := c.stack.families[0]
	target := net.UDPAddrFromAddrPort(at(c.end(to).addr(family), 7777))
	var server, client *net.UDPConn
	check(c.t, c.end(to).Do(func() (err error) {
		server, err = net.ListenUDP("udp", target)
		return err
	}))
	c.t.Cleanup(func() { server.Close() })
	check(c.t, c.end(from).Do(func() (err error) {
		client, err = net.DialUDP("udp", nil, target)
		return err
	}))
	c.t.Cleanup(func() { client.Close() })
	a := &lastArrival{}
	go func() {
		packet := make([]byte, 64)
		for {
			if _, err := server.Read(packet); err != nil {
				return
			}
			a.at.Store(time.Now().UnixNano())
		}
	}()
	go func() {
		for c.t.Context().Err() == nil {
			_, _ = client.Write([]byte("one way")) // what is lost is what is measured
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return a
}
