package labtest

import (
	"bytes"
	"context"
	"errors"
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

// root is the tree, whose README these tests run.
const root = "../.."

func readmeBlocks(t *testing.T) []docstest.Block {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("the tree is not here")
	}
	if err != nil {
		t.Fatal(err)
	}
	return docstest.Blocks("README.md", string(text))
}

// TestTour runs the commands of README.md's tours in their order, each in a lab of another name.
func TestTour(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	for _, section := range []string{"A tour that installs nothing", "Standalone load balancer"} {
		t.Run(section, func(t *testing.T) { tryTour(t, section) })
	}
}

func tryTour(t *testing.T, section string) {
	tour := slices.DeleteFunc(docstest.Section(readmeBlocks(t), section), func(b docstest.Block) bool { return b.Info == "yaml" })
	if len(tour) != 1 || len(tour[0].Lines) < 5 {
		t.Fatalf("README.md's tour is not one block of commands: %+v", tour)
	}
	name := labName(t)
	t.Cleanup(func() { takeDown(t, name) })
	for _, line := range docstest.Commands(tour[0].Lines) {
		words := strings.Fields(line)
		if words[0] != "bin/myelin" || words[1] != "lab" {
			t.Fatalf("%q: the tour is one of bin/myelin lab", line)
		}
		out, err := runTour(t, words[len(words)-1] == "monitor", slices.Concat([]string{"lab", "-n", name}, words[2:]))
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	if _, err := runTour(t, false, []string{"lab", "-n", name, "status"}); err == nil {
		t.Error("the lab is still there after the tour")
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

// TestDemo compares what README.md shows of the demo with what the demo prints: each line, in this order, but for numbers.
func TestDemo(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	blocks := readmeBlocks(t)
	i := slices.IndexFunc(blocks, func(b docstest.Block) bool { return strings.HasPrefix(b.Lines[0], "1. ") })
	if i < 0 {
		t.Fatal("README.md shows nothing of the demo")
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
	printed := shapes(strings.Split(string(out), "\n"))
	for _, line := range shapes(blocks[i].Lines) {
		at := slices.Index(printed, line)
		if at < 0 {
			t.Errorf("README.md shows this line, and the demo does not print it there: %s", line)
			continue
		}
		printed = printed[at+1:]
	}
	if bytes.Contains(out, []byte("NOT AS PROMISED")) {
		t.Errorf("the demo broke a promise:\n%s", out)
	}
}

// shapes are the lines that say something, without what differs between two runs: numbers, addresses, and the widths that they make.
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
