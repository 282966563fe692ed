package labtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"myelin/status"
)

// TestFullRunDir has a run directory without room. The agent starts, restores its pods and says what is wrong; ADD
// is refused with the reason and leaves nothing; DEL works. With room again, so does ADD.
//
//	┌─ node1 ───────────────────────┐
//	│ a1 ⇄ b1   goes   run/ is full │
//	└──────┬────────────────────────┘
//	═══════╧═════════════════════════
func TestFullRunDir(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1, pods: []string{"a", "b"}})
	node, r := c.Node("node1"), c.runtime("node1")
	goes := r.start(t, 1)[0]
	fresh, err := r.create(1)
	check(t, err)

	check(t, node.StopAgent(t.Context()))
	filler := c.narrowRunDir()
	check(t, node.StartAgent(t.Context(), nil))
	for _, f := range c.stack.families {
		c.try(way{"a1", "b1", "a1"}, f)
	}
	c.says("Run directory", status.Broken, "no space left on device")
	wantCNI(t, "ADD", r.add(t.Context(), fresh), types.ErrIOFailure, "no space left on device")
	if out := c.ip("node1", "-o", "-br", "link"); strings.Count("\n"+out, "\nmye") != 3 {
		t.Errorf("after an ADD that was refused, links are\n%s", out)
	}
	check(t, r.del(t.Context(), goes))
	c.podsLeft("node1", 2)

	// A crash finds the same.
	check(t, node.KillAgent(t.Context()))
	fill(t, filler)
	check(t, node.StartAgent(t.Context(), nil))
	for _, f := range c.stack.families {
		c.try(way{"a1", "b1", "a1"}, f)
	}

	check(t, os.Remove(filler))
	check(t, r.add(t.Context(), fresh))
	eventually(t, "the run directory is said to be right", 30*time.Second, func() error {
		report, err := c.report()
		if err != nil {
			return err
		}
		if f := report.Feature("Run directory"); f == nil || f.State != status.OK {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	check(t, r.del(t.Context(), fresh))
}

// narrowRunDir moves what is in the run directory of node1 to a small file system, which it fills, and mounts that
// in its place.
func (c *cluster) narrowRunDir() (filler string) {
	c.t.Helper()
	dir := c.Node("node1").RunDir()
	kept := c.t.TempDir()
	check(c.t, os.RemoveAll(c.Node("node1").Socket()))
	check(c.t, os.CopyFS(kept, os.DirFS(dir)))
	check(c.t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=0700"))
	c.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	check(c.t, os.CopyFS(dir, os.DirFS(kept)))
	filler = filepath.Join(dir, "filler")
	fill(c.t, filler)
	return filler
}

// fill writes to a file until the file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(t, err)
	defer f.Close()
	for range 1 << 10 {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return
		}
	}
	t.Fatal("the file system does not get full")
}
