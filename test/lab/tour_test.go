package labtest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	docstest "myelin/test/docs"
)

// root is the tree, whose documentation these tests run.
const root = "../.."

// userDocs returns the blocks of README.md and docs.
func userDocs(t *testing.T) map[string][]docstest.Block {
	t.Helper()
	docs, err := docstest.UserDocs(root)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("the tree is not here")
	}
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// TestTour runs each tour of README.md and docs: a block of commands from "lab up" to "lab down", each in a lab of
// its own.
func TestTour(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	tours := 0
	docs := userDocs(t)
	delete(docs, docstest.LabPage)
	for _, file := range slices.Sorted(maps.Keys(docs)) {
		for _, block := range docs[file] {
			if !block.IsTour() {
				continue
			}
			tours++
			if testing.Short() && block.Heading != "A tour" { // in the emulated VM: two of them
				continue
			}
			t.Run(file+"/"+block.Heading, func(t *testing.T) {
				t.Parallel()
				tryTour(t, block)
			})
		}
	}
	if tours < minTours {
		t.Errorf("README.md and docs have %d tours, want at least %d: they begin with bin/myelin lab up", tours,
			minTours)
	}
}

// minTours is a lower bound for the tours in the documentation, so that one which is no longer recognised is noticed.
const minTours = 5

func tryTour(t *testing.T, tour docstest.Block) {
	name := labName(t)
	t.Cleanup(func() { takeDown(t, name) })
	for _, line := range docstest.Commands(tour.Lines) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "bin/myelin" || words[1] != "lab" {
			t.Fatalf("%q: every command of a tour begins with bin/myelin lab", line)
		}
		out, err := runTour(t, words[len(words)-1] == "monitor", slices.Concat([]string{"lab", "-n", name}, words[2:]))
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	if _, err := runTour(t, false, []string{"lab", "-n", name, "status"}); err == nil {
		t.Error("the lab still exists after the tour")
	}
}

// runTour runs myelin. A command that watches for ever has to be there still when it is interrupted, and to end then.
func runTour(t *testing.T, watches bool, args []string) (string, error) {
	limit := patience(time.Minute)
	if watches {
		limit = patience(2 * time.Second)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir(), "myelin"), args...)
	cmd.Dir, cmd.SysProcAttr = root, &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) } // as a terminal does
	cmd.WaitDelay = patience(10 * time.Second)
	out, err := cmd.CombinedOutput()
	switch {
	case watches && ctx.Err() == nil:
		return string(out), errors.Join(errors.New("it did not wait to be interrupted"), err)
	case watches && !errors.Is(err, exec.ErrWaitDelay):
		return string(out), nil
	}
	return string(out), err
}

// TestDemo compares the output of the demo that README.md and docs show with what the demo prints: each line must be
// printed, in the same order; numbers and addresses may differ.
func TestDemo(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	var shown []docstest.Block
	for _, blocks := range userDocs(t) {
		for _, b := range blocks {
			if b.IsDemo() {
				shown = append(shown, b)
			}
		}
	}
	if !slices.ContainsFunc(shown, func(b docstest.Block) bool { return b.File == "README.md" }) {
		t.Fatal("README.md shows no output of the demo")
	}
	bin, err := filepath.Abs(binDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience(2*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "scripts/demo.sh")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that it can clean up
	cmd.WaitDelay = patience(30 * time.Second)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "MYELIN_BIN="+bin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("demo: %v\n%s", err, out)
	}
	for _, block := range shown {
		printed := shapes(strings.Split(string(out), "\n"))
		for _, line := range shapes(block.Lines) {
			at := slices.Index(printed, line)
			if at < 0 {
				t.Errorf("%s shows this line, which the demo does not print there: %s", block.File, line)
				continue
			}
			printed = printed[at+1:]
		}
	}
	if bytes.Contains(out, []byte("=> FAILED")) {
		t.Errorf("a step of the demo failed:\n%s", out)
	}
}

// shapes are the lines that say something, without what differs between two runs: numbers, addresses, and the widths
// that they make.
func shapes(lines []string) (list []string) {
	number := regexp.MustCompile(`\b[0-9a-f]*(?:[0-9]|::)[0-9a-f:.]*(?:\[|\]|:[0-9]+)?`)
	width := regexp.MustCompile(`[ ─═]+`)
	for _, line := range lines {
		line = strings.TrimSpace(width.ReplaceAllString(number.ReplaceAllString(line, "N"), " "))
		if line != "" {
			list = append(list, line)
		}
	}
	return list
}
