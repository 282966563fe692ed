package identity

import (
	"bytes"
	"slices"
	"testing"
)

func FuzzState(f *testing.F) {
	f.Add([]byte("{\"version\":1,\"next\":65540}\n{\"id\":65536,\"labels\":[\"a\",\"b\"]}\n{\"id\":"))
	f.Add([]byte("{\"version\":1}\n{\"id\":4294967295,\"labels\":[\"a\"]}\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		next, rows, err := decode(data)
		if err != nil {
			return
		}
		if next < First {
			t.Errorf("next is %d", next)
		}
		// What was read can be written and read again.
		var b bytes.Buffer
		if err := encode(&b, record{Version: version, Next: next}); err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			if row.ID < First {
				t.Errorf("number %d is reserved", row.ID)
			}
			if err := encode(&b, record{ID: row.ID, Labels: row.Labels}); err != nil {
				t.Fatal(err)
			}
		}
		again, copied, err := decode(b.Bytes())
		same := func(x, y *Identity) bool { return x.ID == y.ID && slices.Equal(x.Labels, y.Labels) }
		if err != nil || again != next || !slices.EqualFunc(rows, copied, same) {
			t.Errorf("got %d %v %v, want %d %v", again, copied, err, next, rows)
		}
	})
}
