package sysdump

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addDevices adds the links, addresses, routes, rules, neighbours, queueing disciplines and IPsec states of the
// network namespace.
func (n *Node) addDevices(a *Archive) {
	for name, list := range map[string]func() (any, error){
		"links":      links,
		"addresses":  func() (any, error) { return netlink.AddrList(nil, unix.AF_UNSPEC) },
		"routes":     routes,
		"rules":      func() (any, error) { return netlink.RuleList(unix.AF_UNSPEC) },
		"neighbours": func() (any, error) { return netlink.NeighList(0, unix.AF_UNSPEC) },
		"qdiscs":     func() (any, error) { return qdiscs() },
		"xfrm":       states,
	} {
		file := "devices/" + name + ".json"
		v, err := list()
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			a.Fail(file, err)
			continue
		}
		a.addObject(file, v)
	}
}

func links() (any, error) {
	list, err := netlink.LinkList()
	type row struct {
		Type  string
		Attrs *netlink.LinkAttrs
	}
	rows := make([]row, len(list))
	for i, l := range list {
		rows[i] = row{l.Type(), l.Attrs()}
	}
	return rows, err
}

func routes() (any, error) {
	// Without a table in the filter, only the main one is listed.
	list, err := netlink.RouteListFiltered(
		unix.AF_UNSPEC,
		&netlink.Route{Table: unix.RT_TABLE_UNSPEC},
		netlink.RT_FILTER_TABLE,
	)
	texts := make([]string, len(list))
	for i, r := range list {
		texts[i] = r.String()
	}
	return texts, err
}

func qdiscs() (any, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	texts := map[string][]string{}
	for _, l := range all {
		list, err := netlink.QdiscList(l)
		if err != nil {
			return nil, err
		}
		for _, q := range list {
			texts[l.Attrs().Name] = append(texts[l.Attrs().Name], fmt.Sprintf("%s %s", q.Type(), q.Attrs()))
		}
	}
	return texts, nil
}

// states are those of IPsec, without keys.
func states() (any, error) {
	type row struct {
		Src, Dst, Proto, Mode string
		SPI, ReqID            int
		Algorithms            []string
		Statistics            netlink.XfrmStateStats
	}
	rows := []row{}
	list, err := xfrmStates()
	for _, s := range list {
		r := row{
			Src: s.Src.String(), Dst: s.Dst.String(), Proto: s.Proto.String(), Mode: s.Mode.String(), SPI: s.Spi,
			ReqID:      s.Reqid,
			Statistics: s.Statistics,
		}
		for _, algo := range []*netlink.XfrmStateAlgo{s.Auth, s.Crypt, s.Aead} {
			if algo != nil {
				r.Algorithms = append(r.Algorithms, algo.Name)
			}
		}
		rows = append(rows, r)
	}
	return rows, err
}

// xfrmStates lists the states; none with a kernel that has no IPsec.
func xfrmStates() ([]netlink.XfrmState, error) {
	list, err := netlink.XfrmStateList(unix.AF_UNSPEC)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	return list, err
}

// stateKeys are the keys of IPsec that the kernel has, to be kept out of all files.
func stateKeys() (keys []string) {
	list, err := xfrmStates()
	if err != nil {
		return nil // states says why
	}
	for _, s := range list {
		for _, algo := range []*netlink.XfrmStateAlgo{s.Auth, s.Crypt, s.Aead} {
			if algo != nil {
				keys = append(keys, string(algo.Key))
			}
		}
	}
	return keys
}

// program is a BPF program of the kernel, whoever loaded it.
type program struct {
	ID       ebpf.ProgramID
	Type     string
	Name     string
	Tag      string
	Maps     []ebpf.MapID `json:",omitempty"`
	LoadedAt string       `json:",omitempty"` // since the system's start
}

// addPrograms adds the kernel's BPF programs, and what they are attached to by links.
func (n *Node) addPrograms(a *Archive) {
	var list []program
	var id ebpf.ProgramID
	for {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			a.Fail("bpf/programs.json", err)
			return
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has gone
		}
		if info, err := p.Info(); err == nil {
			row := program{ID: id, Type: info.Type.String(), Name: info.Name, Tag: info.Tag}
			row.Maps, _ = info.MapIDs()
			if at, ok := info.LoadTime(); ok {
				row.LoadedAt = at.String()
			}
			list = append(list, row)
		}
		p.Close()
	}
	a.addObject("bpf/programs.json", list)
	a.addObject("bpf/links.json", bpfLinks())
}

// attachment is a BPF link of the kernel.
type attachment struct {
	ID      link.ID
	Type    int
	Program ebpf.ProgramID
}

func bpfLinks() (list []attachment) {
	var it link.Iterator
	defer it.Close()
	for it.Next() {
		if info, err := it.Link.Info(); err == nil {
			list = append(list, attachment{it.ID, int(info.Type), info.Program})
		}
	}
	return list // what the kernel can't list, before 5.8, it has no links of
}
