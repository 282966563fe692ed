package packettest

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"

	"myelin/test/packet"
)

// Step is one hook in a packet's life.
type Step struct {
	Hook    string // for messages, such as from_pod
	Prog    *ebpf.Program
	Options Options

	// In is the packet that comes; what the step before left if empty.
	In string

	// Ret is what the program is wanted to return.
	Ret uint32

	// Out is how the packet is wanted to leave: "=" for unchanged, and not
	// looked at if empty.
	Out string

	// Ignore names fields of Out that may differ, as in packet.Diff.
	Ignore []string

	// Check looks at what else the step left, if not nil.
	Check func(Result) error
}

// Life runs the steps in order for one family, each on what the one before
// left, and fails t at the first that didn't do as wanted. It returns what the
// last step left.
func Life(t testing.TB, f packet.Family, names packet.Names, steps ...Step) Result {
	t.Helper()
	var r Result
	for i, s := range steps {
		where := fmt.Sprintf("step %d, %s, %s", i+1, s.Hook, f)
		in := r.Out
		if s.In != "" {
			in = Frame(t, f, names, s.In)
		}
		var err error
		if r, err = runAny(s.Prog, in, s.Options); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		text := packet.Format(r.Out, names)
		if r.Ret != s.Ret {
			t.Fatalf("%s: returned %d, want %d\nin  %s\nout %s", where, r.Ret, s.Ret, packet.Format(in, names), text)
		}
		want := r.Out
		switch s.Out {
		case "":
		case "=":
			want = in
		default:
			want = Frame(t, f, names, s.Out)
		}
		if d := packet.Diff(want, r.Out, names, s.Ignore...); d != "" {
			t.Fatalf("%s:\n%s\nwant %s\ngot  %s", where, d, packet.Format(want, names), text)
		}
		if s.Check != nil {
			if err := s.Check(r); err != nil {
				t.Fatalf("%s: %v\nout %s", where, err, text)
			}
		}
	}
	return r
}

// Both runs a test for each family.
func Both(t *testing.T, run func(t *testing.T, f packet.Family)) {
	t.Helper()
	for _, f := range []packet.Family{packet.IPv4, packet.IPv6} {
		t.Run(f.String(), func(t *testing.T) { run(t, f) })
	}
}

// Frame is packet.Parse for a test.
func Frame(t testing.TB, f packet.Family, names packet.Names, text string) []byte {
	t.Helper()
	b, err := packet.Parse(text, f, names)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
