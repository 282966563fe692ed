package packet

import (
	"fmt"
	"strings"
	"testing"
)

func TestFragment(t *testing.T) {
	for _, f := range []Family{IPv4, IPv6} {
		whole, err := Parse(`eth pod1 > gw | ip pod1 > pod2 ttl 9 | udp 1 > 2 | len 3000`, f, testNames())
		if err != nil {
			t.Fatal(err)
		}
		sum := fmt.Sprintf("%#04x", uint16(whole[len(whole)-3002])<<8|uint16(whole[len(whole)-3001]))
		frames, err := Fragment(whole, 1500, 7)
		if err != nil {
			t.Fatal(err)
		}
		size := 1480 // IPv6: a fragment header and the multiple of 8 below
		if f == IPv6 {
			size = 1448
		}
		var body []byte
		for i, b := range frames {
			if len(b) > 1514 {
				t.Errorf("fragment %d of %s has %d bytes", i, f, len(b))
			}
			want := fmt.Sprintf("id 7 off %d", i*size)
			if f == IPv6 {
				want = fmt.Sprintf("frag 7 off %d", i*size)
			}
			if i == 0 {
				want = "udp 1 > 2 len 3008 sum " + sum
			}
			text := Format(b, testNames())
			if !strings.Contains(text, want) || !strings.Contains(text, "ttl 9") ||
				strings.Contains(text, " mf") != (i < len(frames)-1) {
				t.Errorf("fragment %d of %s is %.120s, want %s in it", i, f, text, want)
			}
			body = append(body, b[len(b)-min(size, 3008-i*size):]...)
		}
		if string(body) != string(whole[len(whole)-3008:]) {
			t.Errorf("the fragments of %s don't add up", f)
		}
	}
	for name, frame := range map[string][]byte{"short": make([]byte, 13), "not IP": make([]byte, 100)} {
		if _, err := Fragment(frame, 1500, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	whole, err := Parse(`eth pod1 > gw | ip pod1 > pod2 | udp 1 > 2 | len 30`, IPv4, testNames())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Fragment(whole, 20, 1); err == nil {
		t.Error("an MTU without room: no error")
	}
}
