package hooks

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// socketPlaces are where programs of a control group hang that see what its sockets ask for.
func socketPlaces() []attachment {
	return []attachment{
		{"cgroup connect4", ebpf.AttachCGroupInet4Connect}, {"cgroup connect6", ebpf.AttachCGroupInet6Connect},
		{"cgroup sendmsg4", ebpf.AttachCGroupUDP4Sendmsg}, {"cgroup sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
		{"cgroup recvmsg4", ebpf.AttachCGroupUDP4Recvmsg}, {"cgroup recvmsg6", ebpf.AttachCGroupUDP6Recvmsg},
		{"cgroup getpeername4", ebpf.AttachCgroupInet4GetPeername}, {"cgroup getpeername6",
			ebpf.AttachCgroupInet6GetPeername},
		{"cgroup bind4", ebpf.AttachCGroupInet4Bind}, {"cgroup bind6", ebpf.AttachCGroupInet6Bind},
		{"cgroup post_bind4", ebpf.AttachCGroupInet4PostBind}, {"cgroup post_bind6", ebpf.AttachCGroupInet6PostBind},
		{"cgroup sock_create", ebpf.AttachCGroupInetSockCreate}, {"cgroup sock_release",
			ebpf.AttachCgroupInetSockRelease},
	}
}

// Sockets are the programs on a control group of version 2 that see what sockets ask for; those of groups above it are
// not among them.
func Sockets(cgroup *os.File) (list []Program, err error) {
	for _, place := range socketPlaces() {
		found, err := place.query(int(cgroup.Fd()))
		if err != nil {
			return nil, fmt.Errorf("query programs at %s of %s: %w", strings.TrimPrefix(place.where, "cgroup "),
				cgroup.Name(), err)
		}
		list = append(list, found...)
	}
	return list, nil
}

// Detach takes a program that Sockets found off its control group. One that a link holds there stays, and that is an
// error.
func Detach(cgroup *os.File, p Program) error {
	for _, place := range socketPlaces() {
		if place.where != p.Where {
			continue
		}
		program, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
		if errors.Is(err, unix.ENOENT) {
			return nil // it has ended meanwhile
		}
		if err != nil {
			return fmt.Errorf("open program %d: %w", p.ID, err)
		}
		defer program.Close()
		return link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(cgroup.Fd()), Program: program,
			Attach: place.at})
	}
	return fmt.Errorf("%s is no place on a control group", p.Where)
}
