package docstest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// programs are what command lines of the documentation run.
type programs struct {
	root string
	// myelin reads its flags and arguments, and does nothing.
	myelin string
	// benchFlags are those that myelin-bench has.
	benchFlags []string
	// reads says whether something in the tree reads a variable of the environment.
	reads func(variable string) bool
}

// executeCall is where main.go runs the command line; dry.go.txt takes the work out of it before.
const executeCall = "root.ExecuteContext("

// newPrograms builds myelin from its own sources, but for main.go, in which the tree of commands is made harmless.
func newPrograms(t *testing.T, root string) *programs {
	t.Helper()
	dir := t.TempDir()
	main := filepath.Join(root, "cmd/myelin/main.go")
	text, err := os.ReadFile(main)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), executeCall) != 1 {
		t.Fatalf("cmd/myelin/main.go has not one %s…): this test must know where commands are run", executeCall)
	}
	changed := filepath.Join(dir, "main.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), executeCall, "dry(root).ExecuteContext(", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	dry, err := filepath.Abs("testdata/dry.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{main: changed, filepath.Join(root, "cmd/myelin/zz_dry.go"): dry}})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	p := &programs{root: root, myelin: filepath.Join(dir, "myelin")}
	p.must(t, "go", "build", "-overlay", overlayFile, "-o", p.myelin, "./cmd/myelin")
	bench := filepath.Join(dir, "myelin-bench")
	p.must(t, "go", "build", "-o", bench, "./cmd/myelin-bench")
	help, _ := exec.Command(bench, "-h").CombinedOutput() // -h is an error to package flag
	for _, found := range regexp.MustCompile(`(?m)^  (-[a-z]+)`).FindAllStringSubmatch(string(help), -1) {
		p.benchFlags = append(p.benchFlags, found[1])
	}
	return p
}

func (p *programs) must(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = p.root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// isCommand says whether a line is one that check knows how to try.
func isCommand(line string) bool {
	line = assignments().ReplaceAllString(strings.TrimPrefix(strings.TrimSpace(line), "$ "), "")
	return regexp.MustCompile(`^(bin/)?myelin(-bench)? |^make( |$)|^go (test|run|build|generate|vet) |^(scripts|\.ci|test/cluster)/|^vm\.sh |^\w+\.test( |$)`).MatchString(line)
}

// assignments are the variables before a command.
func assignments() *regexp.Regexp { return regexp.MustCompile(`^([A-Z_]+=\S+\s+)+`) }

// check tries a synopsis in all of its forms.
func (p *programs) check(synopsis string) error {
	for _, name := range regexp.MustCompile(`\b(MYELIN_\w+|IN_VM)=`).FindAllStringSubmatch(synopsis, -1) {
		if !p.reads(name[1]) {
			return fmt.Errorf("nothing reads %s", name[1])
		}
	}
	synopsis = assignments().ReplaceAllString(synopsis, "")
	if strings.HasSuffix(strings.Fields(synopsis)[0], ".test") {
		return nil // a compiled test, whose variables are what matters
	}
	program, rest, _ := strings.Cut(synopsis, " ")
	switch filepath.Base(program) {
	case "myelin":
		return p.alternatives(rest, p.tryMyelin)
	case "myelin-bench":
		return p.alternatives(rest, p.tryBench)
	case "make":
		return p.alternatives(rest, p.tryMake)
	case "go":
		return p.tryGo(strings.Fields(rest))
	case "vm.sh":
		return p.alternatives(rest, p.tryVM)
	}
	return p.alternatives(rest, func(args []string) error { return p.tryScript(program, args) })
}

// alternatives tries a synopsis whose bars may stand between whole ends of lines: "status [-o json] | list". What a later
// alternative begins with is as much of the first one as makes sense.
func (p *programs) alternatives(synopsis string, try func([]string) error) error {
	ends := topLevel(synopsis)
	lines, err := Expand(ends[0])
	if err != nil {
		return err
	}
	for _, line := range lines {
		if err := try(line); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(line, " "), err)
		}
	}
	for _, end := range ends[1:] {
		others, err := Expand(end)
		if err != nil {
			return err
		}
		for _, other := range others {
			var last error
			fits := func(n int) bool {
				last = try(slices.Concat(lines[0][:n], other))
				return last == nil
			}
			if !slices.ContainsFunc(countDown(len(lines[0])-1), fits) {
				return fmt.Errorf("%s: %w", strings.Join(other, " "), last)
			}
		}
	}
	return nil
}

func countDown(from int) (numbers []int) {
	for n := from; n >= 0; n-- {
		numbers = append(numbers, n)
	}
	return numbers
}

// topLevel cuts at bars that stand alone and in no bracket.
func topLevel(synopsis string) []string {
	var ends []string
	depth, begin := 0, 0
	for i, c := range synopsis {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == '|' && depth == 0 && i > 0 && synopsis[i-1] == ' ' && strings.HasPrefix(synopsis[i:], "| "):
			ends, begin = append(ends, synopsis[begin:i]), i+1
		}
	}
	return append(ends, synopsis[begin:])
}

// tryMyelin has the real tree of commands read the arguments. Words in capitals stand for something: numbers, where a flag wants one.
func (p *programs) tryMyelin(args []string) error {
	filled := slices.Clone(args)
	for i, arg := range filled {
		if slices.Contains([]string{"COUNT", "N", "BYTES", "ID", "NUMBER"}, arg) {
			filled[i] = "1500"
		}
	}
	if out, err := exec.Command(p.myelin, filled...).CombinedOutput(); err != nil {
		return fmt.Errorf("refused: %s", strings.TrimSpace(string(out)))
	}
	if i := slices.Index(args, "--"); i >= 0 && i+1 < len(args) && args[i+1] == "myelin" { // lab exec PLACE -- myelin …
		return p.tryMyelin(args[i+2:])
	}
	return nil
}

func (p *programs) tryBench(args []string) error {
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") && !slices.Contains(p.benchFlags, arg) {
			return fmt.Errorf("myelin-bench has no flag %s", arg)
		}
	}
	return nil
}

// tryMake asks make what it would do, and looks for the variables that are set.
func (p *programs) tryMake(args []string) error {
	makefile, err := os.ReadFile(filepath.Join(p.root, "Makefile"))
	if err != nil {
		return err
	}
	for _, arg := range args {
		if name, _, ok := strings.Cut(arg, "="); ok && !strings.Contains(string(makefile), "$("+name+")") {
			return fmt.Errorf("the Makefile uses no %s", name)
		}
	}
	cmd := exec.Command("make", append([]string{"-n"}, args...)...)
	cmd.Dir = p.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("refused: %s", strings.TrimSpace(string(out)))
	}
	return nil
}

// tryGo looks for the packages, and for the tests that -run names.
func (p *programs) tryGo(args []string) error {
	var folders []string
	for _, arg := range args {
		if strings.HasPrefix(arg, "./") {
			folders = append(folders, arg)
		}
	}
	if len(folders) == 0 {
		return fmt.Errorf("no package of this tree")
	}
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(p.root, strings.TrimSuffix(folder, "/..."))); err != nil {
			return err
		}
	}
	run := regexp.MustCompile(`-run '?([^' \]/]+)`).FindStringSubmatch(strings.Join(args, " "))
	if run == nil {
		return nil
	}
	if !p.hasTest(strings.TrimSuffix(folders[0], "/..."), run[1]) {
		return fmt.Errorf("no test in %s matches %s", folders[0], run[1])
	}
	return nil
}

// hasTest says whether some test of the folder's package is one that -run chooses.
func (p *programs) hasTest(folder, pattern string) bool {
	chosen, err := regexp.Compile(pattern)
	if err != nil {
		return false
	}
	files, _ := filepath.Glob(filepath.Join(p.root, folder, "*_test.go"))
	return slices.ContainsFunc(files, func(file string) bool {
		text, _ := os.ReadFile(file)
		tests := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`).FindAllStringSubmatch(string(text), -1)
		return slices.ContainsFunc(tests, func(test []string) bool { return chosen.MatchString(test[1]) })
	})
}

// tryVM looks for verbs and options in the script itself, which can't be asked without booting.
func (p *programs) tryVM(args []string) error {
	text, err := os.ReadFile(filepath.Join(p.root, "test/vm/vm.sh"))
	if err != nil {
		return err
	}
	for i, arg := range args {
		switch {
		case arg == "--":
			return nil
		case i == 0 && !strings.Contains(string(text), " "+arg+") "), strings.HasPrefix(arg, "-") && !strings.Contains(string(text), arg):
			return fmt.Errorf("vm.sh knows no %s", arg)
		}
	}
	return nil
}

// tryScript looks for the script, and for the words that it takes.
func (p *programs) tryScript(program string, args []string) error {
	info, err := os.Stat(filepath.Join(p.root, program))
	if err != nil {
		return err
	}
	if info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s can't be executed", program)
	}
	text, err := os.ReadFile(filepath.Join(p.root, program))
	if err != nil {
		return err
	}
	for _, arg := range args {
		if arg == strings.ToLower(arg) && !regexp.MustCompile(`\b`+regexp.QuoteMeta(arg)+`\)`).Match(text) {
			return fmt.Errorf("%s takes no %s", program, arg)
		}
	}
	return nil
}
