package endpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"myelin/internal/durable"
)

// store keeps one file per endpoint, the only record of what the node handed
// out. It lives in /run, so there is no fsync: what a rename has not shown
// before a power failure is gone together with the pods.
type store struct{ dir string }

const fileSuffix = ".json"

func storeIn(runDir string) store { return store{dir: filepath.Join(runDir, "endpoints")} }

func (s store) path(id uint16) string {
	return filepath.Join(s.dir, fmt.Sprint(id)+fileSuffix)
}

// write replaces the file of e as one step.
func (s store) write(e *Endpoint) error {
	data, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("write state of endpoint %d: %w", e.ID, err)
	}
	err = os.MkdirAll(s.dir, 0o700)
	tmp := s.path(e.ID) + ".tmp"
	if err == nil {
		if err = os.WriteFile(tmp, append(data, '\n'), 0o600); err == nil {
			err = os.Rename(tmp, s.path(e.ID))
		}
		if err != nil {
			_ = os.Remove(tmp) // on a full disk, what was written of it would keep others from their place
		}
	}
	if err != nil {
		return fmt.Errorf("%w: write state of endpoint %d: %w", ErrState, e.ID, err)
	}
	return nil
}

// remove deletes the file of an endpoint; none is no error.
func (s store) remove(id uint16) error {
	if err := os.Remove(s.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove state of endpoint %d: %w", id, err)
	}
	return nil
}

// load reads all files and drops what a crash left half written. Endpoints that
// can be read are returned beside the errors of those that can't; the files of
// the latter stay for the operator to look at.
func (s store) load() (all []*Endpoint, bad []error, err error) {
	all, bad, err = durable.Load(s.dir, fileSuffix, s.read)
	if err != nil {
		return nil, nil, fmt.Errorf("read endpoint states: %w", err)
	}
	return all, bad, nil
}

func (s store) read(name string) (*Endpoint, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read endpoint state: %w", err)
	}
	e := new(Endpoint)
	if err := json.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("read endpoint state %s: %w", name, err)
	}
	if e.ID < MinID || s.path(e.ID) != name || e.ContainerID == "" || e.IfName == "" || e.LinkName == "" {
		return nil, fmt.Errorf("read endpoint state %s: id, containerID, ifName or linkName is missing or wrong", name)
	}
	return e, nil
}

// HasNetkit reports whether a pod that an agent with this run directory made has a netkit link.
func HasNetkit(runDir string) (bool, error) {
	all, _, err := storeIn(runDir).load()
	return slices.ContainsFunc(all, func(e *Endpoint) bool { return e.Kind.IsNetkit() }), err
}

// Stored returns what an agent with this run directory has written of its endpoints, while none runs. Files that cannot
// be read are left out.
func Stored(runDir string) ([]*Endpoint, error) {
	all, _, err := storeIn(runDir).load()
	return all, err
}
