package bandwidth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sysctls is a directory in place of /proc/sys.
type sysctls struct {
	*testing.T
	root string
}

func newSysctls(t *testing.T) sysctls {
	s := sysctls{t, t.TempDir()}
	if err := os.MkdirAll(filepath.Join(s.root, "net/ipv4"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.write(congestion, "cubic\n")
	s.write(slowStart, "1\n")
	return s
}

func (s sysctls) write(name, value string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.root, name), []byte(value), 0o644); err != nil {
		s.Fatal(err)
	}
}

func (s sysctls) want(algorithm, slow string) {
	s.Helper()
	for name, want := range map[string]string{congestion: algorithm, slowStart: slow} {
		data, err := os.ReadFile(filepath.Join(s.root, name))
		if got := strings.TrimSpace(string(data)); err != nil || got != want {
			s.Errorf("%s is %q (%v), want %q", name, got, err, want)
		}
	}
}

func (s sysctls) ops(runDir string) *spaceOps {
	s.Helper()
	kept, err := openOriginals(filepath.Join(runDir, OriginalsFile))
	if err != nil {
		s.Fatal(err)
	}
	return &spaceOps{s.root, kept}
}

func (s sysctls) update(o *spaceOps, on bool) {
	s.Helper()
	if err := o.Update(s.Context(), nil, 0, &Space{Name: "node", BBR: on}); err != nil {
		s.Fatal(err)
	}
}

// What was there before comes back when BBR is switched off, also by a later agent.
func TestBBRIsGivenBack(t *testing.T) {
	s, dir := newSysctls(t), t.TempDir()
	s.update(s.ops(dir), true)
	s.want("bbr", "0")
	o := s.ops(dir)
	s.update(o, true)
	s.update(o, false)
	s.want("cubic", "1")
	s.write(congestion, bbr) // by the administrator
	s.update(s.ops(dir), false)
	s.want("bbr", "1")
}

func TestRestoreCongestion(t *testing.T) {
	s, dir := newSysctls(t), t.TempDir()
	s.update(s.ops(dir), true)
	written, err := RestoreCongestion(dir, s.root)
	if err != nil || len(written) != 2 {
		t.Errorf("wrote %q: %v", written, err)
	}
	s.want("cubic", "1")
	if written, err = RestoreCongestion(dir, s.root); err != nil || len(written) != 0 {
		t.Errorf("once more: wrote %q: %v", written, err)
	}
}

// A pod that is made while the node uses BBR has it from there.
func TestInheritedBBR(t *testing.T) {
	s, dir := newSysctls(t), t.TempDir()
	s.update(s.ops(dir), true)
	o := s.ops(dir)
	pod := &Space{ID: 2, Name: "a", Cookie: 7, BBR: true}
	s.write(slowStart, "1")
	if err := o.Update(t.Context(), nil, 0, pod); err != nil {
		t.Fatal(err)
	}
	s.want("bbr", "0")
	pod.BBR = false
	if err := o.Update(t.Context(), nil, 0, pod); err != nil {
		t.Fatal(err)
	}
	s.want("cubic", "1")
	if o.originals.has("7") || !o.originals.has(hostKey) {
		t.Errorf("known: %v", o.originals.All())
	}
}
