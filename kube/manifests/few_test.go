package manifests

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/statedb"
)

// told is what tables say, in words.
func told(s *Source) string {
	txn := s.DB.ReadTxn()
	out := lines(txn, s.Tables.Nodes) + lines(txn, s.Tables.Namespaces) + lines(txn, s.Tables.Pods) + lines(txn,
		s.Policies.Policies)
	for p := range s.Problems().All(txn) {
		out += p.Error() + "\n"
	}
	return out
}

func lines[T any](txn statedb.ReadTxn, t statedb.Table[T]) (out string) {
	for row := range t.All(txn) {
		out += fmt.Sprintf("%s %+v\n", t.Name(), row)
	}
	return out
}

// timeless is a source with a clock that stands.
func timeless(t *testing.T, dir string) *Source {
	s := newSource(t, dir)
	s.Now = func() time.Time { return time.Unix(1000, 0) }
	return s
}

// podText is a Pod's file, and statusText that of its status.
func podText(i, label int) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: p%d, labels: {l: l%d}}, spec: {nodeName: n1, "+
		"containers: [{name: c, image: i}]}}", i, label)
}

func statusText(i, address int) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: p%d}, status: {podIPs: [{ip: 10.0.1.%d}]}}", i,
		address)
}

// Whatever changes, the tables are what they would be if everything was looked
// at; and most often not everything is.
func TestFew(t *testing.T) {
	dir := t.TempDir()
	check(t, os.Mkdir(filepath.Join(dir, "status"), 0o755))
	check(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	s := timeless(t, dir)
	s.refresh(nil, nil)
	r := rand.New(rand.NewPCG(1, 1))
	few := 0
	const steps = 400
	for step := range steps {
		changed := map[string]bool{}
		for range 1 + r.IntN(3) {
			i := r.IntN(4)
			path, content := filepath.Join(dir, fmt.Sprint("p", i, ".yaml")), podText(i, r.IntN(3))
			switch r.IntN(7) {
			case 0:
				path, content = filepath.Join(dir, "status", fmt.Sprint("n1-p", i, ".yaml")), statusText(i, 2+r.IntN(3))
			case 1:
				path, content = filepath.Join(dir, "d", fmt.Sprint("n", i, ".yaml")), node(fmt.Sprint("n", i),
					fmt.Sprintf("10.%d.0.0/24", r.IntN(3)))
			case 2:
				path, content = filepath.Join(dir, fmt.Sprint("policy", i,
					".yaml")), text(fmt.Sprint("p", i), 80+r.IntN(3))+"---\n"+text(fmt.Sprint("q", i), 80)
			case 3:
				path = filepath.Join(dir, fmt.Sprint(".p", i, ".yaml"))
			}
			switch {
			case r.IntN(30) == 0:
				content = "a: ["
			case r.IntN(30) == 0:
				content += "\n---\n" + node("n9", "10.9.0.0/24") // that others may have as well
			}
			if r.IntN(20) == 0 {
				_ = os.Remove(path)
			} else {
				write(t, path, content)
			}
			changed[path] = true
		}
		if _, enough := s.few(changed); enough {
			few++
		} else {
			s.refresh(nil, changed)
		}
		if s.flawless {
			fresh := timeless(t, dir)
			fresh.refresh(nil, nil)
			if got, want := told(s), told(fresh); got != want {
				t.Fatalf("step %d: got\n%s\nwant\n%s", step, got, want)
			}
		}
	}
	if few < steps/4 {
		t.Errorf("only %d of %d changes were seen alone", few, steps)
	}
}
