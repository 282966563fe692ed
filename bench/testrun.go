package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// testRun is what BPF_PROG_TEST_RUN takes and gives: of github.com/cilium/ebpf, Run doesn't say how long it took, and
// Benchmark takes no context. The kernel's own time has nothing of what else the call does, which for XDP is to wait
// for all processors.
type testRun struct {
	program         uint32
	returned        int32
	sizeIn, sizeOut uint32
	in, out         uint64
	repeat          uint32
	duration        uint32 // of one run, ns
	contextSizeIn   uint32
	contextSizeOut  uint32
	contextIn       uint64
	contextOut      uint64
	flags           uint32
	cpu             uint32
	batch           uint32
	_               uint32
}

// run is begun again where a signal, as Go's scheduler sends them, ends it.
func (t *testRun) run(data []byte, context any) error {
	var about bytes.Buffer
	if err := binary.Write(&about, binary.NativeEndian, context); err != nil {
		return err
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	first, second := &data[0], &about.Bytes()[0]
	pins.Pin(first)
	pins.Pin(second)
	t.sizeIn, t.in = uint32(len(data)), uint64(uintptr(unsafe.Pointer(first)))
	t.contextSizeIn, t.contextIn = uint32(about.Len()), uint64(uintptr(unsafe.Pointer(second)))
	const attempts = 5
	var code unix.Errno
	for range attempts {
		if _, _, code = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(t)),
			unsafe.Sizeof(*t)); !errors.Is(code, unix.EINTR) {
			break
		}
	}
	if code != 0 {
		return fmt.Errorf("run program: %w", code)
	}
	return nil
}
