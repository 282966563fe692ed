package bench

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"testing"
)

// testLog is printed by go test -v.
func testLog() *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// A flood of 50 times as many flows as there is room for ends no connection in use.
func TestFloods(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	list, err := floods(t.Context(), Options{Log: testLog()},
		floodSize{known: 1 << 11, entries: 10 << 8, syns: 1 << 17})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Name != "xdp/flood_kept" || list[1].Name != "xdp/flood_kept6" {
		t.Errorf("%+v", list)
	}
	for _, r := range list {
		if r.Value < 99 || r.Value > 100 {
			t.Errorf("%s: %v %%", r.Name, r.Value)
		}
	}
}

// Patched frames equal the frames that are built from their text, including checksums.
func TestWriter(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, family := range []Family{IPv4, IPv6} {
		f := &front{family: family, mac: [2]net.HardwareAddr{mac, mac}}
		n := flows{count: 4096, clients: 2, first: 50000}
		want, err := f.write(n, "lb", "tcp %d > 80 S")
		if err != nil {
			t.Fatal(err)
		}
		frame, err := f.writer(n, "S")
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if got := frame(i); !bytes.Equal(got, want[i]) {
				t.Fatalf("IPv%d, frame %d:\n%x, not\n%x", family, i, got, want[i])
			}
		}
	}
}
