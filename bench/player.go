package bench

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// layout is where a kind of program finds its packet in its context, and what it returns to lose it, or to let it go
// on.
type layout struct {
	data, end  int16
	lost, goes int32
}

func layoutOf(kind ebpf.ProgramType) layout {
	if kind == ebpf.SchedCLS {
		return layout{data: 76, end: 80, lost: tcShot, goes: tcPass}
	}
	return layout{data: 0, end: 4, lost: xdpDrop, goes: xdpPass}
}

// player is a program that makes each packet that it runs for the next one of a list of frames, as the kernel gives a
// test the same buffer again and again, with what was made of it, and then ends as it is told to.
type player struct {
	*ebpf.Program
	frames *ebpf.Map // one row each, and behind them the number of the next one
	single bool      // each run gets a packet of its own
}

// newPlayer makes one of spec's kind. Frames are of one length, a multiple of 8 bytes, and their number is a power of
// two. Instructions of spec come first, with the context in R1, where they leave it; end has it in R6.
func newPlayer(spec ebpf.ProgramSpec, frames [][]byte, end asm.Instructions) (*player, error) {
	rows, err := newFrames(len(frames), func(i int) []byte { return frames[i] })
	if err != nil {
		return nil, err
	}
	return playerOf(spec, rows, end)
}

// newFrames makes the map of a player's frames.
func newFrames(count int, frame func(int) []byte) (*ebpf.Map, error) {
	length := 0
	if count > 0 {
		length = len(frame(0))
	}
	if count == 0 || count&(count-1) != 0 || length == 0 || length%8 != 0 {
		return nil, fmt.Errorf("play %d frames of %d bytes: a power of two, of a multiple of 8", count, length)
	}
	rows, err := ebpf.NewMap(&ebpf.MapSpec{Name: "frames", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(length),
		MaxEntries: uint32(count + 1)})
	if err != nil {
		return nil, fmt.Errorf("make map of frames: %w", err)
	}
	if err := putFrames(rows, frame); err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	return rows, nil
}

// putFrames replaces the frames of a map.
func putFrames(rows *ebpf.Map, frame func(int) []byte) error {
	for i := range int(rows.MaxEntries()) - 1 {
		f := frame(i)
		if len(f) != int(rows.ValueSize()) {
			return fmt.Errorf("frame %d has %d bytes, not %d", i, len(f), rows.ValueSize())
		}
		if err := rows.Put(uint32(i), f); err != nil {
			return fmt.Errorf("keep frame %d: %w", i, err)
		}
	}
	return nil
}

// playerOf makes one of frames, which it closes, also after an error.
func playerOf(spec ebpf.ProgramSpec, rows *ebpf.Map, end asm.Instructions) (*player, error) {
	p := &player{frames: rows}
	count, length := int(rows.MaxEntries())-1, int(rows.ValueSize())
	spec.Name, spec.License = "player", "GPL"
	spec.Instructions = append(spec.Instructions, playing(rows.FD(), count, length, layoutOf(spec.Type), end)...)
	var err error
	if p.Program, err = ebpf.NewProgram(&spec); err != nil {
		return nil, errors.Join(fmt.Errorf("load player: %w", err), p.close())
	}
	return p, nil
}

// restoring restores the packet's length in XDP: in a test, the next run gets the packet as the last one left it. The
// helper is called even if the length is right, so that the cost is always the same.
func restoring(length int) asm.Instructions {
	at := layoutOf(ebpf.XDP)
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, at.end, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, at.data, asm.Word),
		asm.Sub.Reg(asm.R2, asm.R3),
		asm.Sub.Imm(asm.R2, int32(length)),
		asm.FnXdpAdjustHead.Call(),
		asm.JNE.Imm(asm.R0, 0, "lost"),
		asm.Mov.Reg(asm.R1, asm.R6),
	}
}

// playing reads the number of the next frame, counts it on, and copies that frame over the packet.
func playing(rows, count, length int, at layout, end asm.Instructions) asm.Instructions {
	find := asm.Instructions{
		asm.LoadMapPtr(asm.R1, rows),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "lost"),
	}
	all := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.StoreImm(asm.RFP, -4, int64(count), asm.Word)}
	all = append(all, find...)
	all = append(all,
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.Add.Imm(asm.R2, 1),
		asm.StoreMem(asm.R0, 0, asm.R2, asm.DWord),
		asm.And.Imm(asm.R1, int32(count-1)),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word))
	all = append(all, find...)
	all = append(all,
		asm.LoadMem(asm.R7, asm.R6, at.data, asm.Word),
		asm.LoadMem(asm.R8, asm.R6, at.end, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Add.Imm(asm.R1, int32(length)),
		asm.JGT.Reg(asm.R1, asm.R8, "lost"))
	for i := 0; i < length; i += 8 {
		all = append(all, asm.LoadMem(asm.R1, asm.R0, int16(i), asm.DWord),
			asm.StoreMem(asm.R7, int16(i), asm.R1, asm.DWord))
	}
	all = append(all, end...)
	return append(all, asm.Mov.Imm(asm.R0, at.lost).WithSymbol("lost"), asm.Return())
}

// first begins again with the first frame.
func (p *player) first() error { return p.seek(0) }

// seek makes a frame the next one.
func (p *player) seek(frame int) error {
	row := make([]byte, p.frames.ValueSize())
	binary.NativeEndian.PutUint64(row, uint64(frame))
	return p.frames.Put(p.frames.MaxEntries()-1, row)
}

func (p *player) close() error {
	if p.Program == nil {
		return p.frames.Close()
	}
	return errors.Join(p.Program.Close(), p.frames.Close())
}

// Verdicts of XDP and tc.
const (
	xdpDrop = 1
	xdpPass = 2
	xdpTX   = 3
	tcPass  = 0
	tcShot  = 2
	tcAway  = 7 // redirected
)

// ending is a program's end with a verdict.
func ending(verdict int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}
}

// onTo is a program's end in another program, the first of a map.
func onTo(programs *ebpf.Map) asm.Instructions {
	return append(asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, programs.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
	}, ending(-1)...)
}
