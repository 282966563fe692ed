package labtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	docstest "myelin/test/docs"
)

// TestLabDocs runs the commands of docs/lab.md, section by section, each in a lab of its own, and looks for what the
// comments behind them say: "prints TEXT", or "fails".
func TestLabDocs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/lab.md"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("the tree is not here")
	}
	check(t, err)
	blocks := docstest.Blocks("docs/lab.md", string(text))
	for _, section := range []string{"Star Wars", "Guestbook"} {
		t.Run(section, func(t *testing.T) {
			t.Parallel()
			name := labName(t)
			t.Cleanup(func() { takeDown(t, name) })
			ran := 0
			for _, b := range blocks {
				if b.Heading != section {
					continue
				}
				for _, line := range b.Lines {
					runDocLine(t, name, line)
					ran++
				}
			}
			if ran < 8 {
				t.Errorf("only %d commands were run", ran)
			}
		})
	}
}

// runDocLine runs a command until it does what its comment says, as traffic may take a moment to follow a change. A
// command that changes something is run once.
func runDocLine(t *testing.T, name, line string) {
	t.Helper()
	words := strings.Fields(docstest.Command(line))
	if len(words) < 3 || words[0] != "bin/myelin" || words[1] != "lab" {
		t.Fatalf("%q: want bin/myelin lab", line)
	}
	_, comment, _ := strings.Cut(line, " # ")
	try := func() error {
		out, err := runTour(t, false, slices.Concat([]string{"lab", "-n", name}, words[2:]))
		text, prints := strings.CutPrefix(comment, "prints ")
		switch {
		case comment == "fails" && err == nil:
			return fmt.Errorf("it does not fail: %s", out)
		case comment != "fails" && err != nil:
			return fmt.Errorf("%w: %s", err, out)
		case prints && !strings.Contains(out, text):
			return fmt.Errorf("it does not print %q: %s", text, out)
		case !prints && comment != "fails" && comment != "":
			t.Fatalf("%q: what does the comment say?", line)
		}
		return nil
	}
	if slices.Contains([]string{"exec", "get", "logs", "describe"}, words[2]) {
		eventually(t, line, 20*time.Second, try)
		return
	}
	if err := try(); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
}
