package bandwidth

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"myelin/endpoint"
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
	written, err := RestoreCongestion(dir, s.root, nil)
	if err != nil || len(written) != 2 {
		t.Errorf("wrote %q: %v", written, err)
	}
	s.want("cubic", "1")
	if written, err = RestoreCongestion(dir, s.root, nil); err != nil || len(written) != 0 {
		t.Errorf("once more: wrote %q: %v", written, err)
	}
}

// Pods that run still have theirs given back by clean-up, too. Parameters are the kernel's own here.
func TestRestoreCongestionOfPods(t *testing.T) {
	p, dir := newPodSpace(t), t.TempDir()
	within := func(fn func() error) {
		t.Helper()
		if err := ns.WithNetNSPath(p.Path, func(ns.NetNS) error { return fn() }); err != nil {
			t.Fatal(err)
		}
	}
	p.root = "/proc/sys"
	o := p.ops(dir)
	within(func() error { return errors.Join(o.write(congestion, "reno"), o.write(slowStart, "1")) })
	p.BBR = true
	if err := o.Update(t.Context(), nil, 0, &p.Space); err != nil {
		t.Skip(err) // the kernel has no BBR
	}
	within(func() error { p.want(bbr, "0"); return nil })
	other := &endpoint.Endpoint{ID: 3, Pod: "gone", NetNS: "/nowhere", NetnsCookie: 1}
	pod := &endpoint.Endpoint{ID: p.ID, Namespace: "default", Pod: "a", NetNS: p.Path, NetnsCookie: p.Cookie}
	written, err := RestoreCongestion(dir, p.root, []*endpoint.Endpoint{other, pod})
	if err != nil || len(written) != 2 || !strings.HasSuffix(written[0], " in default/a") {
		t.Errorf("wrote %q: %v", written, err)
	}
	within(func() error { p.want("reno", "1"); return nil })
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
