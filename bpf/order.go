package bpf

import "encoding/binary"

// word and putWord move what is in network order in the kernel as it lies in memory.
func word(b []byte) uint32       { return binary.NativeEndian.Uint32(b) }
func putWord(b []byte, w uint32) { binary.NativeEndian.PutUint32(b, w) }

// Port turns a port of the datapath, in network order, into a number.
func Port(p uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], p)
	return binary.BigEndian.Uint16(b[:])
}
