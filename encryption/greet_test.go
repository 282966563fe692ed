package encryption

import (
	"fmt"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/encryption/options"
)

// keepalives is a device that notes the keepalives that its peers get.
type keepalives struct {
	counted
	list []time.Duration
}

func (k *keepalives) ConfigureDevice(name string, change wgtypes.Config) error {
	for _, p := range change.Peers {
		k.list = append(k.list, *p.PersistentKeepaliveInterval)
	}
	return k.counted.ConfigureDevice(name, change)
}

// TestGreet: a peer that is new to the device gets a packet, if it is to be greeted: a keepalive, for that moment if it
// has none otherwise. Later changes of it send nothing.
func TestGreet(t *testing.T) {
	const usual = 25 * time.Second
	for _, row := range []struct {
		greet     bool
		keepalive time.Duration
		want      []time.Duration
	}{
		{false, 0, []time.Duration{0, 0}},
		{false, usual, []time.Duration{usual, usual}},
		{true, 0, []time.Duration{options.MaxKeepalive, 0, 0}},
		{true, usual, []time.Duration{usual, usual}},
	} {
		in := testInput()
		in.greet, in.keepalive = row.greet, row.keepalive
		in.nodes = append(in.nodes[:1], someNode(1, 1))
		p := derivePeers(in)[0]
		k := &keepalives{}
		ops := &peerOps{k, map[string]*allowed{DeviceName: {}}}
		for range 2 {
			if err := ops.Update(t.Context(), nil, 0, p); err != nil {
				t.Fatal(err)
			}
		}
		if fmt.Sprint(k.list) != fmt.Sprint(row.want) {
			t.Errorf("greet %t, keepalive %s: got %s, want %s", row.greet, row.keepalive, k.list, row.want)
		}
	}
}

// TestLostSessions: others may have sessions with a key that is older than the device.
func TestLostSessions(t *testing.T) {
	key := nodeKey{public: "a", since: time.Now()}
	at := func(seconds int) time.Time { return key.since.Add(time.Duration(seconds) * time.Second) }
	for _, row := range []struct {
		name   string
		device Device
		want   bool
	}{
		{"a first start", Device{Name: DeviceName, PublicKey: "a", Made: at(0)}, false},
		{"a reboot", Device{Name: DeviceName, PublicKey: "a", Made: at(60)}, true},
		{"a reboot without the key", Device{Name: DeviceName, PublicKey: "a", Made: at(-60)}, false},
		{"an agent that starts again", Device{Name: DeviceName, PublicKey: "a"}, false},
		{"another key", Device{Name: DeviceName, PublicKey: "b", Made: at(60)}, false},
		{"the second device", Device{Name: RotationDevice, PublicKey: "a", Made: at(60)}, false},
	} {
		if got := row.device.lostSessions(key); got != row.want {
			t.Errorf("%s: %t", row.name, got)
		}
	}
}
