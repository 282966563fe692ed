package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// turn is a front's node that balances nothing: a program of one instruction sends each frame back as it is. It is what all else is paid for around
// a balancer: who sends, both ends of the wire, and who counts.
type turn struct {
	program *ebpf.Program
	link    link.Link
}

func (t *turn) frames() bool { return true }

func (t *turn) begin(_ context.Context, f *front, _ *objects, _ int) (err error) {
	t.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "turn", Type: ebpf.XDP, License: "GPL", Instructions: ending(xdpTX)})
	if err != nil {
		return fmt.Errorf("load turn: %w", err)
	}
	return inNetns(f.prefix+"a", func() (err error) {
		t.link, err = link.AttachXDP(link.XDPOptions{Program: t.program, Interface: f.index[0], Flags: link.XDPDriverMode})
		return err
	})
}

func (t *turn) end() error {
	var err error
	if t.link != nil {
		err = t.link.Close()
	}
	return errors.Join(err, t.program.Close())
}
