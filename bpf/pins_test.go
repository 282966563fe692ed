package bpf

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestPins: what removes links of devices that are gone sees no others. It once removed that of proxy_accept while the
// agent started, so that the proxy got no connections.
func TestPins(t *testing.T) {
	t.Parallel()
	a := &Attacher{dir: t.TempDir()}
	for _, name := range []string{"eth0-from_wire", "my-tap-to_wire", "eth0-from_wire_xdp-native", "proxy_accept"} {
		if err := os.WriteFile(filepath.Join(a.dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pins, err := a.Pins()
	var devices []string
	for _, pin := range pins {
		device, _ := SplitPin(pin)
		devices = append(devices, device)
	}
	if want := []string{"eth0", "eth0", "my-tap"}; err != nil || !slices.Equal(devices, want) {
		t.Errorf("links of the devices %q, want %q; %v", devices, want, err)
	}
}
