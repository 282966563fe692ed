package remove

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"myelin/style"
)

const (
	feature = "prefilter"
	folder  = "policy/" + feature
)

// lines are the lines that name the feature outside of its folder, by file.
// Fields of structs and drop reasons may stay: nothing sets them then.
func lines() map[string][]string {
	return map[string][]string{
		"agent/agent.go":      {`"myelin/` + folder + `"`, feature + ".Feature("},
		"bpf/datapath.c":      {`#include "../` + folder + `/`, "config." + feature, "return XDP_DROP;"},
		"service/from_wire.h": {`#include "../` + folder + `/`, "config." + feature, "DROP_PREFILTER"},
		"config/config.go":    {feature + `/options"`, feature + ".Options"},
		"config/settings.go":  {feature + `/options"`, feature + ".Keys()"},
		"style/includes.txt":  {folder + " "},
	}
}

// TestRemoveFeature builds a copy of the tree without the prefilter: without
// its folder, and without its lines elsewhere.
func TestRemoveFeature(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the whole tree")
	}
	root, dir := filepath.Join("..", ".."), t.TempDir()
	copyTree(t, root, dir)
	if err := os.RemoveAll(filepath.Join(dir, folder)); err != nil {
		t.Fatal(err)
	}
	for file, texts := range lines() {
		if removed := removeLines(t, filepath.Join(dir, file), texts...); removed != len(texts) {
			t.Errorf("%s has %d lines of %s, want one with each of %q", file, removed, feature, texts)
		}
	}
	compileC(t, dir)
	build := exec.CommandContext(t.Context(), "go", "build", "./...")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-buildvcs=false -trimpath", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("build without %s: %v\n%s", feature, err, out)
	}
}

// compileC compiles each header, and the programs, without generating code.
func compileC(t *testing.T, dir string) {
	t.Helper()
	compiler := style.Compiler()
	if compiler == "" {
		t.Log("without clang-19 the C files are not compiled")
		return
	}
	files := []string{"bpf/datapath.c"}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".h" {
			files = append(files, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	broken, err := style.SelfContained(dir, compiler, files)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range broken {
		t.Errorf("compile without %s: %s", feature, finding)
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
