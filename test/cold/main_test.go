package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
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
	took, err := measure(t.Context(), root, "test", []string{"sh", "-c", script})
	if err != nil || took <= 0 {
		t.Error(took, err)
	}
	if _, err := measure(t.Context(), root, "test", []string{"false"}); err == nil {
		t.Error("a command that failed has a time")
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment("/d", []string{"PATH=/bin", "MAKEFLAGS=w", "MYELIN_RECORD=1", "GOFLAGS=x"})
	if len(got) != 5 || got[0] != "PATH=/bin" || slices.Contains(got, "GOFLAGS=x") {
		t.Error(got)
	}
}
