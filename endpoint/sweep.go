package endpoint

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Stray is a pod link that no endpoint stands for, since its state file was
// lost or can't be read.
type Stray struct {
	Name  string `json:"name"`
	Index int    `json:"index"`
	// Pod: its other side is in a network namespace that lives.
	Pod bool `json:"pod"`
}

// String names the link as it is reported.
func (s Stray) String() string {
	return fmt.Sprintf("pod link %s (index %d) belongs to no endpoint", s.Name, s.Index)
}

// Strays finds them among the links of the host. It may be called at any time
// after Restore: what an Add or Delete is at is none.
func (m *Manager) Strays(links []netlink.Link) []Stray {
	known := m.slots.links()
	var list []Stray
	for _, l := range links {
		a := l.Attrs()
		if !IsLinkName(a.Name) || l.Type() != "veth" && l.Type() != "netkit" || known[a.Name] {
			continue
		}
		// The kernel tells the namespace of the other side by a number, by none if
		// it is the host's own, and by -1, which comes as an unsigned one, if that
		// namespace is about to end.
		list = append(list, Stray{Name: a.Name, Index: a.Index, Pod: int32(a.NetNsID) >= 0})
	}
	return list
}

// Sweep removes the strays that serve no pod, sets those down that may, and
// returns the latter. It sets links of endpoints up, should an earlier Sweep
// have taken them for strays, as it does where the run directory is not the
// right one. Call it after Restore, and before the first Add.
func (m *Manager) Sweep(host *netlink.Handle) ([]Stray, error) {
	links, err := host.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("sweep pod links: %w", err)
	}
	var errs []error
	known := m.slots.links()
	for _, l := range links {
		if a := l.Attrs(); known[a.Name] && a.Flags&net.FlagUp == 0 {
			m.log.Info("pod link was down, set it up", "link", a.Name, "index", a.Index)
			errs = append(errs, gone("set up", a.Name, host.LinkSetUp(l)))
		}
	}
	var stay []Stray
	for _, s := range m.Strays(links) {
		link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: s.Name, Index: s.Index}}
		if !s.Pod {
			m.log.Info("delete pod link that belongs to no endpoint and no pod", "link", s.Name, "index", s.Index)
			errs = append(errs, gone("delete", s.Name, host.LinkDel(link)))
			continue
		}
		m.log.Warn("pod link belongs to no endpoint, set it down; delete its pod", "link", s.Name, "index", s.Index)
		stay = append(stay, s)
		errs = append(errs, gone("set down", s.Name, host.LinkSetDown(link)))
	}
	return stay, errors.Join(errs...)
}

// gone is no error where the link vanished meanwhile, with the pod's namespace.
func gone(act, name string, err error) error {
	if err == nil || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return fmt.Errorf("sweep pod links: %s %s: %w", act, name, err)
}

// links are the names of the links of all attachments that hold a slot: from
// before their link is made until after it is removed.
func (s *slots) links() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make(map[string]bool, len(s.owners))
	for a := range s.owners {
		names[linkName(a)] = true
	}
	return names
}
