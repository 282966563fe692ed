package packet

import (
	"encoding/binary"
	"fmt"
)

// sctp is the common header of SCTP and one chunk, whose value is the payload
// that follows: RFC 9260 section 3.
type sctp struct {
	sport, dport uint16
	vtag         uint32
	hasChunk     bool
	chunk, flags uint8
	length       override
	bad          bool
	sum          override
}

const (
	sctpLen  = 12
	chunkLen = 4
)

// chunkWords is the names of the chunk types, in the order of their numbers.
func chunkWords() []string {
	return []string{"data", "init", "init-ack", "sack", "heartbeat", "heartbeat-ack", "abort", "shutdown",
		"shutdown-ack", "error", "cookie-echo", "cookie-ack", "ecne", "cwr", "shutdown-complete"}
}

func (*sctp) proto() uint8 { return protoSCTP }

func (h *sctp) encode(inner []byte, _ place) ([]byte, error) {
	b := appendPorts(nil, h.sport, h.dport)
	b = binary.BigEndian.AppendUint32(b, h.vtag)
	b = append(b, 0, 0, 0, 0)
	if h.hasChunk {
		length := h.length.or(chunkLen + len(inner))
		if length > 0xffff {
			return nil, fmt.Errorf("sctp: chunk length %d needs more than 16 bits", length)
		}
		b = append(b, h.chunk, h.flags)
		b = binary.BigEndian.AppendUint16(b, uint16(length))
	}
	b = append(b, inner...)
	for h.hasChunk && len(b)%4 != 0 {
		b = append(b, 0)
	}
	sum := sctpSum(b)
	if h.bad {
		sum = ^sum
	}
	// RFC 9260 appendix A: the CRC is the one number in little endian.
	binary.LittleEndian.PutUint32(b[8:], sum)
	if h.sum.set {
		binary.BigEndian.PutUint32(b[8:], h.sum.value)
	}
	return b, nil
}

// parseSCTP reads
//
//	sctp SPORT > DPORT [vtag N] [data|init|…|chunk N [flags N] [chunk-len N]] [badsum|sum N]
func (c *parser) parseSCTP(l *line) {
	h := &sctp{}
	h.sport, h.dport = l.ports()
	l.fields("sctp", func(w string) bool {
		switch w {
		case "vtag":
			h.vtag = l.u32()
		case "chunk":
			h.hasChunk, h.chunk = true, l.u8()
		case "flags":
			h.flags = l.u8()
		case "chunk-len":
			h.length = l.number(16)
		case "badsum":
			h.bad = true
		case "sum":
			h.sum = l.number(32)
		default:
			for i, word := range chunkWords() {
				if word == w {
					h.hasChunk, h.chunk = true, uint8(i)
					return true
				}
			}
			return false
		}
		return true
	})
	c.add(h)
}

func (d *decoder) sctp(b []byte, s scope) {
	if len(b) < sctpLen {
		d.raw(b, s)
		return
	}
	l := d.startPorts("sctp", protoSCTP, b)
	l.hexNum("vtag", binary.BigEndian.Uint32(b[4:]), 0)
	rest := b[sctpLen:]
	if len(rest) >= chunkLen {
		rest = l.sctpChunk(rest)
	}
	sum, right := binary.LittleEndian.Uint32(b[8:]), sctpSum(b)
	f := field{name: "sum", value: fmt.Sprintf("%#08x", sum), sum: goodSum}
	switch sum {
	case right:
	case ^right:
		f.words, f.sum, f.any = "badsum", badSumSeen, true
	default:
		f.words, f.sum = fmt.Sprintf("sum %#08x", binary.BigEndian.Uint32(b[8:])), badSumSeen
	}
	if s.partial {
		f.sum = unknownSum
	}
	l.fields = append(l.fields, f)
	d.raw(rest, s)
}

// sctpChunk adds the first chunk's header and returns what follows it, without
// the chunk's padding.
func (l *layer) sctpChunk(b []byte) []byte {
	word := fmt.Sprintf("chunk %d", b[0])
	if int(b[0]) < len(chunkWords()) {
		word = chunkWords()[b[0]]
	}
	l.add("chunk", word, word)
	l.hexNum("flags", uint32(b[1]), 0)
	length := int(binary.BigEndian.Uint16(b[2:]))
	value := b[chunkLen:]
	if pad := len(b) - length; length >= chunkLen && pad > 0 && pad < 4 && len(b)%4 == 0 {
		value = b[chunkLen:length]
	}
	l.num("chunk-len", length, chunkLen+len(value))
	return value
}
