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

	"myelin/chart"
)

// programs are the programs that command lines of the documentation run.
type programs struct {
	root string
	// myelin is a program that parses its flags and arguments, and does nothing else.
	myelin string
	// benchFlags are the flags of myelin-bench.
	benchFlags []string
	// accepted are arguments that myelin and make have accepted: the pages repeat themselves.
	accepted map[string]bool
	// reads reports whether any file of the tree reads an environment variable.
	reads func(variable string) bool
}

// executeCall is where main.go runs the command line; dry.go.txt removes the work of all commands before it.
const executeCall = "root.ExecuteContext("

// newPrograms builds myelin with a changed main.go, in which commands do nothing.
func newPrograms(t *testing.T, root string) *programs {
	t.Helper()
	dir := t.TempDir()
	main := filepath.Join(root, "cmd/myelin/main.go")
	text, err := os.ReadFile(main)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), executeCall) != 1 {
		t.Fatalf("cmd/myelin/main.go does not contain %s…) exactly once: this test must know where commands are run",
			executeCall)
	}
	changed := filepath.Join(dir, "main.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), executeCall, "dry(root).ExecuteContext(", 1)),
		0o644); err != nil {
		t.Fatal(err)
	}
	dry, err := filepath.Abs("testdata/dry.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{main: changed,
		filepath.Join(root, "cmd/myelin/zz_dry.go"): dry}})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	p := &programs{root: root, myelin: filepath.Join(dir, "myelin"), accepted: map[string]bool{}}
	p.must(t, "go", "build", "-ldflags=-s -w", "-overlay", overlayFile, "-o", p.myelin, "./cmd/myelin")
	bench := filepath.Join(dir, "myelin-bench")
	p.must(t, "go", "build", "-ldflags=-s -w", "-o", bench, "./cmd/myelin-bench")
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

// isCommand reports whether check can check a line.
func isCommand(line string) bool {
	line = assignments().ReplaceAllString(strings.TrimPrefix(strings.TrimSpace(line), "$ "), "")
	return regexp.MustCompile(`^(bin/)?myelin(-bench)? |^make( |$)|^helm |^go (test|run|build|generate|vet) ` +
		`|^(scripts|\.ci|test/cluster)/|^vm\.sh |^\w+\.test( |$)`).MatchString(line)
}

// assignments matches environment variables before a command.
func assignments() *regexp.Regexp { return regexp.MustCompile(`^([A-Z_]+=\S+\s+)+`) }

// check checks a synopsis in all of its forms.
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
	case "helm":
		return p.alternatives(rest, p.tryHelm)
	case "vm.sh":
		return p.alternatives(rest, p.tryVM)
	}
	return p.alternatives(rest, func(args []string) error { return p.tryScript(program, args) })
}

// alternatives checks a synopsis in which bars may separate the ends of lines: "status [-o json] | list". A later
// alternative begins with as many words of the first one as are accepted.
func (p *programs) alternatives(synopsis string, try func([]string) error) error {
	ends := topLevel(synopsis)
	lines, err := expand(ends[0])
	if err != nil {
		return err
	}
	for _, line := range lines {
		if err := try(line); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(line, " "), err)
		}
	}
	for _, end := range ends[1:] {
		others, err := expand(end)
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

// topLevel splits at separate bars outside brackets.
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

// tryMyelin parses the arguments with the real command tree. Placeholders in capitals are replaced by a number if a
// flag needs one.
func (p *programs) tryMyelin(args []string) error {
	filled := slices.Clone(args)
	for i, arg := range filled {
		if slices.Contains([]string{"COUNT", "N", "BYTES", "ID", "NUMBER"}, arg) {
			filled[i] = "1500"
		}
		if arg == "FORMAT" {
			filled[i] = "yaml"
		}
	}
	if err := p.accepts(exec.Command(p.myelin, filled...)); err != nil {
		return err
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

// tryMake runs make -n, and looks for the variables that are set.
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
	return p.accepts(cmd)
}

// accepts runs a command that changes nothing, once.
func (p *programs) accepts(cmd *exec.Cmd) error {
	key := strings.Join(cmd.Args, "\x00")
	if p.accepted[key] {
		return nil
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("refused: %s", strings.TrimSpace(string(out)))
	}
	p.accepted[key] = true
	return nil
}

// tryGo checks that the packages exist, and the tests that -run names.
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
	if run == nil || run[1] == "^$" { // benchmarks alone
		return nil
	}
	if !p.hasTest(strings.TrimSuffix(folders[0], "/..."), run[1]) {
		return fmt.Errorf("no test in %s matches %s", folders[0], run[1])
	}
	return nil
}

// hasTest reports whether -run matches a test of the folder's package.
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

// tryHelm renders the tree's chart with the values that the command sets.
func (p *programs) tryHelm(args []string) error {
	if len(args) < 2 || !slices.Contains([]string{"install", "upgrade", "uninstall", "template"}, args[0]) {
		return fmt.Errorf("want helm install|upgrade|uninstall|template NAME")
	}
	var settings []string
	for i, arg := range args[:len(args)-1] {
		if arg == "--set" {
			settings = append(settings, args[i+1])
		}
	}
	values, err := chart.Values(nil, settings)
	if err != nil {
		return err
	}
	namespace := "kube-system"
	if i := slices.Index(args, "-n"); i >= 0 && i+1 < len(args) {
		namespace = args[i+1]
	}
	inCluster := func(string, string, string, string) (map[string]any, error) { return clusterInfo(), nil }
	_, err = chart.Render(chart.Options{
		Release: args[1], Namespace: namespace, Version: "1.0.0", Values: values, Lookup: inCluster,
	})
	return err
}

// clusterInfo is the ConfigMap in which kubeadm keeps the API server's address.
func clusterInfo() map[string]any {
	const config = "clusters: [{cluster: {server: 'https://192.0.2.10:6443'}}]"
	return map[string]any{"data": map[string]any{"kubeconfig": config}}
}

// tryVM looks for verbs and options in the script itself, which cannot be run without booting.
func (p *programs) tryVM(args []string) error {
	text, err := os.ReadFile(filepath.Join(p.root, "test/vm/vm.sh"))
	if err != nil {
		return err
	}
	for i, arg := range args {
		switch {
		case arg == "--":
			return nil
		case i == 0 && !strings.Contains(string(text), " "+arg+") "), strings.HasPrefix(arg, "-") &&
			!strings.Contains(string(text), arg):
			return fmt.Errorf("vm.sh knows no %s", arg)
		}
	}
	return nil
}

// tryScript checks that the script exists and has the words.
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
