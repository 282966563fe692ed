package packet

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// layer is one decoded layer: every field for Diff, and the words that Format
// writes.
type layer struct {
	kind   string
	fields []field

	// What the layer outside has to say about this one when nothing else
	// is written; negative when there is nothing.
	etherType, proto int
}

type field struct {
	name  string
	value string // for Diff
	words string // for Format; "" where Parse would choose this value anyway
	sum   sumState
	any   bool // a wrong checksum as badsum writes it
}

type sumState uint8

const (
	notSum     sumState = iota
	goodSum             // a checksum, right
	badSumSeen          // a checksum, wrong
	unknownSum          // a checksum of bytes that are not all there
)

func (l *layer) text() string {
	texts := []string{l.kind}
	if l.kind == payloadKind || l.kind == padKind {
		texts = nil
	}
	for _, f := range l.fields {
		if f.words != "" {
			texts = append(texts, f.words)
		}
	}
	return strings.Join(texts, " ")
}

func (l *layer) add(name, value, words string) {
	l.fields = append(l.fields, field{name: name, value: value, words: words})
}

// num adds a number that is written when it isn't right.
func (l *layer) num(name string, v, right int) {
	words := ""
	if v != right {
		words = fmt.Sprintf("%s %d", name, v)
	}
	l.add(name, fmt.Sprint(v), words)
}

// hexNum is num in hexadecimal.
func (l *layer) hexNum(name string, v, right uint32) {
	words := ""
	if v != right {
		words = fmt.Sprintf("%s %#x", name, v)
	}
	l.add(name, fmt.Sprintf("%#x", v), words)
}

// flag adds a word that stands alone.
func (l *layer) flag(name string, set bool) {
	if set {
		l.add(name, "set", name)
		return
	}
	l.add(name, "not set", "")
}

// bytes adds bytes that are written when there are any.
func (l *layer) bytes(name string, b []byte) {
	if len(b) == 0 {
		l.add(name, "none", "")
		return
	}
	l.add(name, hex.EncodeToString(b), name+" "+hex.EncodeToString(b))
}

// pair adds "A > B".
func (l *layer) pair(src, dst string) {
	l.add("src", src, src+" >")
	l.add("dst", dst, dst)
}

// checksum adds a 16-bit checksum.
func (l *layer) checksum(got, right uint16, s scope) {
	f := field{name: "sum", value: fmt.Sprintf("%#04x", got), sum: goodSum}
	switch {
	case got == right:
	case got == badSum(right):
		f.words, f.sum, f.any = "badsum", badSumSeen, true
	case got == 0xffff && right == 0: // the other zero of ones' complement
		f.words = "sum 0xffff"
	default:
		f.words, f.sum = fmt.Sprintf("sum %#04x", got), badSumSeen
	}
	if s.partial {
		f.sum = unknownSum
	}
	l.fields = append(l.fields, f)
}

// scope is what a layer knows of the layers outside.
type scope struct {
	ip      pseudo
	ethSrc  [6]byte
	hasEth  bool
	partial bool // bytes are missing: transport checksums can't be verified
}

// decoder turns bytes into layers.
type decoder struct {
	names  reverse
	layers []*layer
	depth  int
}

func decode(b []byte, names Names, first decodeFunc, depth int) []*layer {
	d := &decoder{names: names.reverse(), depth: depth}
	first(d, b, scope{})
	return d.layers
}

func (d *decoder) start(kind string) *layer {
	l := &layer{kind: kind, etherType: -1, proto: -1}
	d.layers = append(d.layers, l)
	return l
}

// full reports that the rest has to be left as bytes.
func (d *decoder) full() bool { return len(d.layers) >= d.depth-1 }

// after returns the layer that follows l, nil if there is none.
func (d *decoder) after(l *layer) *layer {
	for i, x := range d.layers {
		if x == l && i+1 < len(d.layers) {
			return d.layers[i+1]
		}
	}
	return nil
}

// quoted decodes a packet that begins with an IP header.
func (d *decoder) quoted(b []byte, s scope) {
	switch {
	case len(b) > 0 && b[0]>>4 == 4:
		d.ip4(b, s)
	case len(b) > 0 && b[0]>>4 == 6:
		d.ip6(b, s)
	default:
		d.raw(b, s)
	}
}
