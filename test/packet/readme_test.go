package packet

import (
	"os"
	"strings"
	"testing"
)

func TestREADMELines(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	names := testNames()
	names["node1"], names["node2"] = names["pod1"], names["pod2"]
	lines := 0
	for line := range strings.Lines(string(readme)) {
		text, ok := strings.CutPrefix(line, "    eth ")
		if !ok {
			continue
		}
		lines++
		for _, f := range []Family{IPv4, IPv6} {
			if _, err := Parse("eth "+text, f, names); err != nil {
				t.Error(err)
			}
		}
	}
	if lines < 6 {
		t.Errorf("README has %d packets, want at least 6", lines)
	}
}
