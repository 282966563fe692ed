package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/endpoint"
)

// hostSpace is the ID of the node's own network namespace, which no endpoint has.
const hostSpace = 0

// Names below /proc/sys of what BBR needs, and its values.
const (
	congestion = "net/ipv4/tcp_congestion_control"
	slowStart  = "net/ipv4/tcp_slow_start_after_idle"
	bbr        = "bbr"
)

// Space is the row of a network namespace whose sockets use BBR or send smaller packets, or no longer.
type Space struct {
	ID     uint16 `json:"id"` // of the endpoint; 0: the node
	Name   string `json:"name"`
	Path   string `json:"path,omitempty"` // empty: that of the process
	Cookie uint64 `json:"cookie,omitempty"`
	Link   int    `json:"link,omitempty"` // index of the pod's link on the node
	BBR    bool   `json:"bbr"`            // false: what was there before
	// Segments is how many segments (GSO) a packet of the pod has at most; 0: what was there before.
	Segments int               `json:"segments,omitempty"`
	Status   reconciler.Status `json:"status"`
}

// Equal leaves the status out.
func (s *Space) Equal(o *Space) bool {
	return s.ID == o.ID && s.Name == o.Name && s.Path == o.Path && s.Cookie == o.Cookie && s.Link == o.Link &&
		s.BBR == o.BBR && s.Segments == o.Segments
}

// TableHeader names the columns of TableRow.
func (*Space) TableHeader() []string { return []string{"Name", "BBR", "Segments", "Status"} }

// TableRow is the row as text.
func (s *Space) TableRow() []string {
	segments := "-"
	if s.Segments > 0 {
		segments = fmt.Sprint(s.Segments)
	}
	return []string{s.Name, fmt.Sprint(s.BBR), segments, s.Status.String()}
}

// key is the name of the namespace in the file of originals. A cookie stands for one namespace until the node starts
// anew, which empties the run directory too.
func (s *Space) key() string {
	if s.ID == hostSpace {
		return hostKey
	}
	return fmt.Sprint(s.Cookie)
}

func spaceID() statedb.Index[*Space, uint16] {
	return statedb.Index[*Space, uint16]{
		Name:       "id",
		FromObject: func(s *Space) index.KeySet { return index.NewKeySet(index.Uint16(s.ID)) },
		FromKey:    index.Uint16, FromString: index.Uint16String, Unique: true,
	}
}

// spaceOps writes kernel parameters of network namespaces. Sockets keep the algorithm that they were made with.
type spaceOps struct {
	root      string // "/proc/sys"
	originals *originals
}

// Update writes the parameters, or gives them back.
func (o *spaceOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *Space) error {
	change := o.set
	if !s.BBR {
		change = func(s *Space) error {
			_, err := o.giveBack(s)
			return err
		}
	}
	var congestionErr, segmentsErr error
	err := o.enter(s, func() error {
		congestionErr, segmentsErr = change(s), o.setSegments(s)
		return nil
	})
	if err := errors.Join(err, congestionErr); err != nil {
		return fmt.Errorf("congestion control of %s: %w", s.Name, err)
	}
	if segmentsErr != nil {
		return fmt.Errorf("%s of %s: %w", segments, s.Name, segmentsErr)
	}
	return nil
}

// enter runs fn in the namespace. One that has gone is no error: its row goes, too. Its path may lead to another one
// then, which is left alone.
func (o *spaceOps) enter(s *Space, fn func() error) error {
	if s.Path == "" {
		return fn()
	}
	space, err := ns.GetNS(s.Path)
	var other ns.NSPathNotNSErr
	var missing ns.NSPathNotExistErr
	if errors.As(err, &missing) || errors.As(err, &other) {
		return nil
	}
	if err != nil {
		return err
	}
	defer space.Close()
	return space.Do(func(ns.NetNS) error {
		cookie, err := bpf.NetnsCookie()
		if err != nil || cookie != s.Cookie {
			return err
		}
		return fn()
	})
}

func (o *spaceOps) set(s *Space) error {
	for _, p := range []struct{ name, want string }{{congestion, bbr}, {slowStart, "0"}} {
		have, err := o.read(p.name)
		if err != nil {
			return err
		}
		was := have
		// A new namespace has the algorithm of the node's own: BBR, once that is on.
		first := o.originals.of(hostKey, p.name)
		if p.name == congestion && have == p.want && s.ID != hostSpace && first != "" {
			was = first
		}
		if err := o.originals.keep(s.key(), p.name, was); err != nil {
			return err
		}
		if have == p.want {
			continue
		}
		if err := o.write(p.name, p.want); err != nil {
			if errors.Is(err, unix.ENOENT) {
				err = errors.New("the kernel has no BBR (CONFIG_TCP_CONG_BBR)")
			}
			return fmt.Errorf("set %s to %s: %w", p.name, p.want, err)
		}
	}
	return nil
}

// giveBack writes what was there before, where a parameter is what set has made of it, and returns what it has written.
// What a new namespace has only from the node's own, becomes what that had.
func (o *spaceOps) giveBack(s *Space) (written []string, err error) {
	for _, p := range []struct{ name, set string }{{congestion, bbr}, {slowStart, "0"}} {
		was := o.originals.of(s.key(), p.name)
		if was == "" && p.name == congestion {
			was = o.originals.of(hostKey, p.name)
		}
		have, err := o.read(p.name)
		if err != nil {
			return written, err
		}
		if was == "" || have != p.set || was == have {
			continue
		}
		if err := o.write(p.name, was); err != nil {
			return written, fmt.Errorf("set %s back to %s: %w", p.name, was, err)
		}
		written = append(written, p.name+" = "+was)
	}
	return written, o.originals.forget(s.key(), congestion, slowStart)
}

func (o *spaceOps) read(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(o.root, name))
	return strings.TrimSpace(string(data)), err
}

func (o *spaceOps) write(name, value string) error {
	return os.WriteFile(filepath.Join(o.root, name), []byte(value), 0)
}

// Delete forgets a namespace that has gone.
func (o *spaceOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *Space) error {
	if s.ID == hostSpace {
		return nil
	}
	return o.originals.forget(s.key(), congestion, slowStart, segments)
}

// Prune forgets namespaces without a row.
func (o *spaceOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Space, statedb.Revision]) error {
	keep := map[string]bool{hostKey: true}
	for s := range rows {
		keep[s.key()] = true
	}
	return o.originals.only(keep)
}

// RestoreCongestion gives the network namespaces of the node and of pods that run what they had before BBR, by the file
// of originals, which it removes. It returns what was written, "NAME = VALUE", with the name of the pod.
func RestoreCongestion(runDir, procSys string, pods []*endpoint.Endpoint) (written []string, err error) {
	kept, err := openOriginals(filepath.Join(runDir, OriginalsFile))
	if err != nil {
		return nil, err
	}
	o := &spaceOps{procSys, kept}
	spaces := []*Space{} // the node's is last: what it had is what pods have had
	for _, e := range pods {
		spaces = append(spaces, &Space{ID: e.ID, Name: e.PodName(), Path: e.NetNS, Cookie: e.NetnsCookie})
	}
	var errs []error
	for _, s := range append(spaces, &Space{ID: hostSpace, Name: "node"}) {
		if !kept.has(s.key()) {
			continue
		}
		err := o.enter(s, func() error {
			names, err := o.giveBack(s)
			for _, name := range names {
				if s.ID != hostSpace {
					name += " in " + s.Name
				}
				written = append(written, name)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("congestion control of %s: %w", s.Name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return written, err
	}
	return written, kept.remove()
}
