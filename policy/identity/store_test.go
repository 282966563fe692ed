package identity

import (
	"bytes"
	"slices"
	"testing"

	"myelin/internal/table/ledger"
)

func FuzzState(f *testing.F) {
	f.Add([]byte("{\"version\":1,\"next\":65540}\n{\"id\":65536,\"labels\":[\"a\",\"b\"]}\n{\"id\":"))
	f.Add([]byte("{\"version\":1}\n{\"id\":4294967295,\"labels\":[\"a\"]}\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		read := newKnown()
		next, err := ledger.Decode(data, First, read.add)
		if err != nil {
			return
		}
		if next < First {
			t.Errorf("next is %d", next)
		}
		for _, row := range read.rows {
			if row.ID < First {
				t.Errorf("number %d is reserved", row.ID)
			}
		}
		// What was read can be written and read again.
		var b bytes.Buffer
		if _, err := ledger.Encode(&b, next, records(read.rows)); err != nil {
			t.Fatal(err)
		}
		copied := newKnown()
		again, err := ledger.Decode(b.Bytes(), First, copied.add)
		same := func(x, y *Identity) bool { return x.ID == y.ID && slices.Equal(x.Labels, y.Labels) }
		if err != nil || again != next || !slices.EqualFunc(read.rows, copied.rows, same) {
			t.Errorf("got %d %v %v, want %d %v", again, copied.rows, err, next, read.rows)
		}
	})
}
