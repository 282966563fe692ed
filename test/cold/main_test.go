package main

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// A command sees the last commit, empty caches of its own, and no setting of this process; nothing of it stays.
func TestMeasure(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("MYELIN_BIN", "/nowhere")
	t.Setenv("GOFLAGS", "-buildvcs=false")
	const script = `set -eu
		[ -e go.mod ]; [ -z "${MYELIN_BIN-}" ]; [ "$GOFLAGS" = "-buildvcs=false -modcacherw" ]
		[ -z "$(git status --short)" ]
		for d in "$GOCACHE" "$GOMODCACHE" "$XDG_CACHE_HOME"; do
			case $d in "$TMPDIR"/*) [ ! -e "$d" ]; mkdir "$d"; touch "$d/file" ;; *) exit 1 ;; esac
		done`
	root, err := output(t.Context(), "git", "rev-parse", "--show-toplevel")
	if err != nil {
		t.Fatal(err)
	}
	took, err := measure(t.Context(), root, []string{"sh", "-c", script}, options{times: 1})
	if err != nil || len(took) != 1 || took[0] <= 0 {
		t.Error(took, err)
	}
	// Fails in the third run, which is the last one.
	const third = `echo >> runs; [ $(wc -l < runs) -lt 3 ] && [ -e go.mod ]`
	took, err = measure(t.Context(), root, []string{"sh", "-c", third}, options{times: 5, busy: 1})
	if err == nil || len(took) != 2 {
		t.Errorf("a command that fails in its third run: %v, %v", took, err)
	}
	const cache = `[ "$GOCACHE" = /there ] && [ "$GOFLAGS" = -buildvcs=false ] && [ -z "${MYELIN_BIN-}" ]`
	t.Setenv("GOCACHE", "/there")
	if _, err = measure(t.Context(), root, []string{"sh", "-c", cache}, options{times: 1, warm: true}); err != nil {
		t.Errorf("a command with the caches of this machine: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestParse(t *testing.T) {
	o, names, err := parse([]string{"-times", "10", "-busy", "2", "test"})
	if err != nil || o != (options{times: 10, busy: 2}) || o.cold() || !slices.Equal(names, []string{"test"}) {
		t.Error(o, names, err)
	}
	if o, _, err := parse([]string{"demo", "ci"}); err != nil || !o.cold() {
		t.Error(o, err)
	}
	if o, _, err := parse([]string{"-warm", "test"}); err != nil || !o.warm || o.cold() {
		t.Error(o, err)
	}
	for _, bad := range [][]string{{}, {"make"}, {"-times", "0", "test"}, {"-busy", "-1", "test"}} {
		if _, _, err := parse(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// Loops take the time of CPUs until they are stopped.
func TestOccupy(t *testing.T) {
	used := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano())
	}
	begin, end := used(), time.Now().Add(time.Minute)
	stop := occupy(1)
	for used()-begin < 200*time.Millisecond && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
	stop()
	if got := used() - begin; got < 200*time.Millisecond {
		t.Errorf("%s of a CPU used in a minute", got)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "MAKEFLAGS=w", "MYELIN_RECORD=1", "GOFLAGS=x"})
	if !slices.Equal(got, []string{"PATH=/bin", "GOFLAGS=x"}) {
		t.Error(got)
	}
}
