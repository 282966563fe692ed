package nettest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// These tests have nothing mounted that would keep the namespaces of others, and release only what is in the directory.
func TestReleaseOthers(t *testing.T) {
	Root(t)
	if mounted := mounts(t, "/run/netns/"); len(mounted) > 0 {
		t.Errorf("mounted here: %v", mounted)
	}
	one, other := NewNS(t), NewNS(t)
	if err := releaseOthers(filepath.Dir(one)); err != nil {
		t.Fatal(err)
	}
	if len(mounts(t, one)) != 0 || len(mounts(t, other)) != 1 {
		t.Errorf("mounted: %v", mounts(t, filepath.Dir(filepath.Dir(one))))
	}
	if err := releaseOthers("/run/no such directory"); err != nil {
		t.Error(err)
	}
}

func mounts(t *testing.T, prefix string) (list []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, prefix) {
			list = append(list, point)
		}
	}
	return list
}
