package route

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
)

// Sysctl is a row of the table of kernel parameters.
type Sysctl struct {
	// Name is the path below /proc/sys, which unlike the dotted form can name
	// an interface with a dot in it: net/ipv4/conf/eth0.100/rp_filter.
	Name   string            `json:"name"`
	Want   string            `json:"want"`             // what is written
	Accept []string          `json:"accept,omitempty"` // other values that are left alone
	Have   string            `json:"have,omitempty"`   // what the last reading or writing left
	Was    string            `json:"was,omitempty"`    // what was found before the first writing by this agent
	Why    string            `json:"why"`
	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same; what was found does not count.
func (s *Sysctl) Equal(o *Sysctl) bool {
	return s.Name == o.Name && s.Want == o.Want && s.Why == o.Why && slices.Equal(s.Accept, o.Accept)
}

// TableHeader names the columns of TableRow.
func (*Sysctl) TableHeader() []string {
	return []string{"Name", "Want", "Have", "Was", "Why", "Status"}
}

// TableRow is the row as text.
func (s *Sysctl) TableRow() []string {
	return []string{s.Name, strings.Join(append([]string{s.Want}, s.Accept...), "|"), s.Have, s.Was, s.Why,
		s.Status.String()}
}

func sysctlName() statedb.Index[*Sysctl, string] {
	return statedb.Index[*Sysctl, string]{
		Name:       "name",
		FromObject: func(s *Sysctl) index.KeySet { return index.NewKeySet(index.String(s.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

// sysctlByName queries the row of a kernel parameter.
func sysctlByName(name string) statedb.Query[*Sysctl] {
	i := sysctlName()
	return i.Query(name)
}

// newSysctlTable makes the table of kernel parameters in db.
func newSysctlTable(db *statedb.DB) (statedb.RWTable[*Sysctl], error) {
	return statedb.NewTable(db, "sysctls", sysctlName())
}

// sysctlDevice is the device that a name like net/ipv4/conf/DEVICE/rp_filter is
// about, or empty.
func sysctlDevice(name string) string {
	parts := strings.Split(name, "/")
	if len(parts) != 5 || parts[2] != "conf" {
		return ""
	}
	return parts[3]
}

func sysctlStatus(s *Sysctl) *reconciler.Status { return &s.Status }

// sysctlOps writes files below a directory that is /proc/sys but in tests.
// What lies below /proc/sys/net is that of the thread's network namespace.
type sysctlOps struct {
	kernel *Kernel
	root   string
	before *originals
}

// Update writes the parameter if it has a value that will not do. Where it
// can't be written, as in a container without rights, the row tells.
func (o *sysctlOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, s *Sysctl) error {
	path := filepath.Join(o.root, s.Name)
	err := o.kernel.Do(func() error {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && sysctlDevice(s.Name) != "" {
			// A device that vanished takes its parameters along, and soon its rows.
			if _, gone := os.Stat(filepath.Dir(path)); errors.Is(gone, fs.ErrNotExist) {
				return nil
			}
		}
		if err != nil {
			return err
		}
		s.Have = strings.TrimSpace(string(data))
		if s.Was == "" {
			s.Was = s.Have
		}
		if s.Have == s.Want || slices.Contains(s.Accept, s.Have) {
			return nil
		}
		if err := o.before.keep(s.Name, s.Have); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(s.Want), 0); err != nil {
			return err
		}
		s.Have = s.Want
		return nil
	})
	if err != nil {
		return fmt.Errorf("set %s to %s: %w", s.Name, s.Want, err)
	}
	return nil
}

// Delete leaves the parameter as it is: another program may have come to
// depend on it, and a node that stops to forward is worse than one that goes on.
// RestoreSysctls restores them.
func (*sysctlOps) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *Sysctl) error {
	return nil
}

// Prune does nothing, for the reason that Delete does nothing.
func (*sysctlOps) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*Sysctl, statedb.Revision]) error {
	return nil
}
