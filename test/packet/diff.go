package packet

import (
	"bytes"
	"fmt"
	"strings"
)

// Diff returns one line for each field in which frame got is not as wanted,
// such as "ip.ttl: want 63 got 64", and "" when there is none. A second header
// of a kind, as in a quoted or tunnelled packet, is ip#2.
//
// Checksums are verified in got rather than compared: one that follows from
// other differences makes no line of its own, a wrong one does. A wrong one is
// as wanted where want has it too, or has any wrong one written as badsum.
//
// ignore names fields that may differ: "ip.id", or "*.sum" for every layer.
func Diff(want, got []byte, names Names, ignore ...string) string {
	return diff(decode(want, names, (*decoder).eth, maxLayers), decode(got, names, (*decoder).eth, maxLayers), want,
		got, ignore)
}

// DiffIP is Diff for packets without a link layer.
func DiffIP(want, got []byte, names Names, ignore ...string) string {
	return diff(decode(want, names, (*decoder).quoted, maxLayers), decode(got, names, (*decoder).quoted, maxLayers),
		want, got, ignore)
}

func diff(want, got []*layer, wantBytes, gotBytes []byte, ignore []string) string {
	if bytes.Equal(wantBytes, gotBytes) {
		return ""
	}
	d := differ{ignore: ignore, seen: map[string]int{}}
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i].kind != got[i].kind {
			d.line("layer %d: want %s", i+1, rest(want, i))
			d.line("%*s got %s", len(fmt.Sprintf("layer %d:", i+1)), "", rest(got, i))
			return d.text()
		}
		d.layer(want[i], got[i])
	}
	if len(d.lines) == 0 && !d.excused {
		d.line("%s", bytesLine(wantBytes, gotBytes))
	}
	return d.text()
}

type differ struct {
	ignore  []string
	seen    map[string]int
	lines   []string
	excused bool // a difference was seen and passed over
}

func (d *differ) line(format string, args ...any) {
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *differ) text() string { return strings.Join(d.lines, "\n") }

// layer compares two layers of the same kind.
func (d *differ) layer(want, got *layer) {
	kind := want.kind
	if kind == "ip4" || kind == "ip6" {
		kind = "ip"
	}
	d.seen[kind]++
	path := kind
	if d.seen[kind] > 1 {
		path = fmt.Sprintf("%s#%d", kind, d.seen[kind])
	}
	for _, name := range fieldNames(want, got) {
		w, g := want.find(name), got.find(name)
		if w.value == g.value {
			// A checksum that is the same in both can be wrong in only
			// one of them.
			if g.sum != badSumSeen || w.sum == badSumSeen {
				continue
			}
		}
		if d.ignored(kind, path, name) || g.sumAsWanted(w) {
			d.excused = true
			continue
		}
		d.line("%s.%s: want %s got %s", path, name, w.describe(), g.describe())
	}
}

func fieldNames(want, got *layer) []string {
	var names []string
	seen := map[string]bool{}
	for _, f := range append(want.fields[:len(want.fields):len(want.fields)], got.fields...) {
		if !seen[f.name] {
			seen[f.name] = true
			names = append(names, f.name)
		}
	}
	return names
}

// find returns the field of a name; the values of fields that share one, such
// as options, together.
func (l *layer) find(name string) field {
	var found field
	n := 0
	for _, f := range l.fields {
		if f.name != name {
			continue
		}
		if n++; n == 1 {
			found = f
			continue
		}
		found.value += " " + f.value
	}
	if n == 0 {
		return field{name: name, value: "none"}
	}
	return found
}

func (d *differ) ignored(kind, path, name string) bool {
	for _, i := range d.ignore {
		if i == kind+"."+name || i == path+"."+name || i == "*."+name {
			return true
		}
	}
	return false
}

// sumAsWanted reports that got's checksum, although another number, is what
// was wanted.
func (g field) sumAsWanted(w field) bool {
	switch {
	case w.sum == notSum || g.sum == notSum:
		return false
	case w.sum == goodSum && g.sum == goodSum:
		return true
	case w.sum == badSumSeen && w.any && g.sum == badSumSeen:
		return true
	}
	return false
}

func (f field) describe() string {
	switch f.sum {
	case goodSum:
		return f.value + " (right)"
	case badSumSeen:
		return f.value + " (wrong)"
	}
	return f.value
}

// rest is the text of the layers from i on.
func rest(layers []*layer, i int) string {
	if i >= len(layers) {
		return "the end"
	}
	return layersText(layers[i:])
}

// bytesLine says where two packets differ in bytes that no field shows.
func bytesLine(want, got []byte) string {
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			return fmt.Sprintf("byte %d: want %#02x got %#02x", i, want[i], got[i])
		}
	}
	return fmt.Sprintf("length: want %d got %d", len(want), len(got))
}
