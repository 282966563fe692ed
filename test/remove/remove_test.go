package remove

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRemoveFeature builds a copy of the tree without the prefilter: without
// its folder, and without the lines that name its package elsewhere.
func TestRemoveFeature(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the whole tree")
	}
	const feature = "prefilter"
	root, dir := filepath.Join("..", ".."), t.TempDir()
	copyTree(t, root, dir)
	if err := os.RemoveAll(filepath.Join(dir, feature)); err != nil {
		t.Fatal(err)
	}
	removed := removeLines(t, filepath.Join(dir, "agent", "agent.go"), `"myelin/`+feature+`"`, feature+".Feature(")
	if removed != 2 {
		t.Errorf("the list of features has %d lines of %s, want an import and an entry", removed, feature)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "./...")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-buildvcs=false -trimpath", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("build without %s: %v\n%s", feature, err, out)
	}
}

// removeLines removes the lines that contain one of the texts, and returns how many.
func removeLines(t *testing.T, file string, texts ...string) (removed int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(text), "\n"), func(line string) bool {
		found := slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(line, text) })
		if found {
			removed++
		}
		return found
	})
	if err := os.WriteFile(file, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return removed
}

// copyTree copies the files that git tracks or would add.
func copyTree(t *testing.T, root, dir string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list the files of the tree: %v", err)
	}
	for name := range bytes.SplitSeq(bytes.TrimSuffix(out, []byte{0}), []byte{0}) {
		if err := copyFile(filepath.Join(root, string(name)), filepath.Join(dir, string(name))); err != nil &&
			!os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

func copyFile(from, to string) error {
	if info, err := os.Stat(from); err != nil || !info.Mode().IsRegular() {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}
