package docstest

import (
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"myelin/config"
	"myelin/kube/manifests"
	"myelin/style"
	"myelin/test/packet"
)

// tree is what the blocks are checked against.
type tree struct {
	root     string
	files    []string
	text     map[string]string // of Go, C, shell and protobuf files
	module   *goModule
	programs *programs
}

func newTree(t *testing.T) *tree {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	tr := &tree{root: root, text: map[string]string{}}
	if tr.files, err = style.Files(root); err != nil {
		t.Fatal(err)
	}
	for _, file := range tr.files {
		if slices.Contains([]string{".go", ".c", ".h", ".sh", ".proto"}, path.Ext(file)) && !strings.HasPrefix(file,
			"test/docs/") {
			text, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Fatal(err)
			}
			tr.text[file] = string(text)
		}
	}
	if tr.module, err = readModule(root, tr.files); err != nil {
		t.Fatal(err)
	}
	return tr
}

func (tr *tree) markdown(t *testing.T) map[string]string {
	found := map[string]string{}
	for _, file := range tr.files {
		if path.Ext(file) == ".md" {
			text, err := os.ReadFile(filepath.Join(tr.root, file))
			if err != nil {
				t.Fatal(err)
			}
			found[file] = string(text)
		}
	}
	return found
}

// TestBlocks executes or checks each block of each Markdown file; what can't be is in exceptions.txt.
func TestBlocks(t *testing.T) {
	tr := newTree(t)
	tr.programs = newPrograms(t, tr.root)
	tr.programs.reads = func(variable string) bool { return tr.has(variable, ".go", ".sh") }
	exceptions, err := style.Rows("exceptions.txt", 2)
	if err != nil {
		t.Fatal(err)
	}
	used := make([]bool, len(exceptions))
	checked := 0
	for file, text := range tr.markdown(t) {
		for _, b := range Blocks(file, text) {
			problems := tr.check(b)
			i := slices.IndexFunc(exceptions, func(row []string) bool { return b.excepted(row) })
			switch {
			case i >= 0:
				used[i] = used[i] || len(problems) > 0
			case len(problems) > 0:
				t.Errorf("%s\n\t%s", b.Name(), strings.Join(problems, "\n\t"))
			default:
				checked++
			}
		}
		for _, span := range codeSpans(text) {
			for command := range strings.SplitSeq(span, " && ") {
				if !regexp.MustCompile(`^(\w+=\S+ )*((bin/)?myelin(-bench)? [a-z-]|make [a-z]|go \w+ \./)`).MatchString(
					command) {
					continue
				}
				if err := tr.programs.check(command); err != nil {
					t.Errorf("%s: `%s`: %v", file, command, err)
				}
			}
		}
	}
	for i, row := range exceptions {
		if !used[i] {
			t.Errorf("exceptions.txt: nothing needs %q any more", row[0])
		}
	}
	t.Logf("%d blocks are run or checked, %d are excepted", checked, len(exceptions))
}

// TestTours: a command for a lab stands in a tour, so that TestTour in test/lab runs it, and a tour takes its lab down.
func TestTours(t *testing.T) {
	docs, err := UserDocs("../..")
	if err != nil {
		t.Fatal(err)
	}
	delete(docs, LabPage)
	for _, blocks := range docs {
		for _, b := range blocks {
			usesLab := func(line string) bool { return strings.HasPrefix(line, "bin/myelin lab ") }
			if slices.ContainsFunc(b.Lines, usesLab) && !b.IsTour() {
				t.Errorf("%s: commands for a lab must begin with %q", b.Name(), tourCommand)
			}
			if b.IsTour() && Command(b.Lines[len(b.Lines)-1]) != "bin/myelin lab down" {
				t.Errorf("%s: the tour does not end with bin/myelin lab down", b.Name())
			}
		}
	}
}

// excepted: a row is FILE:LINE, what begins the block's first line with "_" for white space, and its reason.
func (b Block) excepted(row []string) bool {
	file, begin, _ := strings.Cut(row[0], ":")
	first := strings.Join(strings.Fields(b.Lines[0]), "_")
	return file == b.File && strings.HasPrefix(first, begin)
}

// check is the list of what is wrong with a block. Blocks that can be run as a whole are; else each line must be of a
// kind that can be checked.
func (tr *tree) check(b Block) (problems []string) {
	switch {
	case b.Info == "yaml":
		return oneProblem(yaml(b))
	case b.IsDemo():
		return tr.demo(b)
	}
	var left []string
	for _, line := range Commands(b.Lines) {
		if !isCommand(line) {
			continue
		}
		if err := tr.programs.check(line); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", line, err))
		}
	}
	for _, line := range b.Lines {
		if command := Command(line); !isCommand(command) &&
			!(strings.HasPrefix(line, " ") && strings.HasPrefix(command, "[")) {
			left = append(left, line)
		}
	}
	return append(problems, tr.others(b, left)...)
}

// demo compares the steps in a block with those of scripts/demo.sh, by number and text. TestDemo in test/lab runs the
// demo and compares its output.
func (tr *tree) demo(b Block) (problems []string) {
	steps := regexp.MustCompile(`(?m)^say "(.*)"$`).FindAllStringSubmatch(tr.text["scripts/demo.sh"], -1)
	for _, line := range b.Lines {
		if command := strings.TrimSpace(line); strings.HasPrefix(command, "$ ") {
			problems = append(problems, oneProblem(tr.programs.check(Command(command)))...)
		}
		number, text, _ := strings.Cut(line, ". ")
		if n, err := strconv.Atoi(number); err == nil && (n < 1 || n > len(steps) || steps[n-1][1] != text) {
			problems = append(problems, "scripts/demo.sh has no step "+line)
		}
	}
	return problems
}

// others checks lines that are no commands.
func (tr *tree) others(b Block, lines []string) (problems []string) {
	if len(lines) == 0 {
		return nil
	}
	if strings.ContainsAny(strings.Join(lines, ""), "►▼│═─") {
		return tr.diagram(lines)
	}
	var golang []string
	for _, line := range lines {
		if known, wrong := tr.line(b, line); known {
			problems = append(problems, wrong...)
		} else {
			golang = append(golang, line)
		}
	}
	if len(golang) == 0 {
		return problems
	}
	wrong, ok := tr.module.Snippet(golang)
	if !ok {
		return append(problems, fmt.Sprintf("neither a command, nor Go, C, a packet, files or words of this tree: %q",
			golang))
	}
	return append(problems, wrong...)
}

// line checks a line that says by itself what it is.
func (tr *tree) line(b Block, line string) (known bool, problems []string) {
	trimmed := strings.TrimSpace(line)
	word, rest, spaced := strings.Cut(trimmed, "  ")
	switch {
	case regexp.MustCompile(`^(return |[a-z]\w* = )?\w+\(.*\);`).MatchString(trimmed):
		return true, tr.c(trimmed)
	case strings.HasPrefix(trimmed, "eth "):
		return true, oneProblem(packetText(trimmed))
	case strings.HasPrefix(trimmed, "func "):
		return true, tr.signature(b, trimmed)
	case strings.HasPrefix(trimmed, "GET "):
		return true, tr.httpPath(b, word)
	case regexp.MustCompile(`^go (test|run|generate)`).MatchString(trimmed):
		return true, oneProblem(tr.programs.check(Command(trimmed)))
	case b.Heading == "FILES" || isFile(word) && (spaced && rest != ""):
		return true, tr.fileNames(b, line)
	case b.Heading == "DESCRIPTION" && spaced && regexp.MustCompile(`^[A-Za-z-]+$`).MatchString(word):
		return true, tr.word(b, word)
	case b.Heading == "DESCRIPTION" && strings.HasPrefix(line, "     "):
		return true, nil // goes on with the word above
	}
	return false, nil
}

func oneProblem(err error) []string {
	if err == nil {
		return nil
	}
	return []string{err.Error()}
}

// yaml checks a block by the loader of what it shows: policy objects, else the agent's configuration.
func yaml(b Block) error {
	text := []byte(strings.Join(b.Lines, "\n") + "\n")
	if regexp.MustCompile(`(?m)^kind: `).Match(text) {
		_, _, err := manifests.ReadPolicies(text, b.File, time.Time{})
		return err
	}
	_, err := config.Parse(text, b.File)
	return err
}

// packetText parses a packet of the test language, in both families where it takes both.
func packetText(text string) error {
	names := packet.Names{}
	for i, name := range strings.Fields("pod1 pod2 gw world node1 node2 a b") {
		names[name] = packet.Name{
			MAC: []byte{2, 0, 0, 0, 0, byte(i)}, IP4: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}),
			IP6: netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+1)),
		}
	}
	families := []packet.Family{packet.IPv4, packet.IPv6}
	if strings.Contains(text, "arp ") {
		families = families[:1]
	}
	for _, f := range families {
		if _, err := packet.Parse(text, f, names); err != nil {
			return err
		}
	}
	return nil
}

// c looks for the functions that C calls, with as many parameters, and for constants in capitals.
func (tr *tree) c(line string) (problems []string) {
	call := regexp.MustCompile(`(\w+)\((.*?)\);`).FindStringSubmatch(line)
	parameters := regexp.MustCompile(`(?m)^(?:INLINE|APART) .*\b` + call[1] + `\((.*)\)$`)
	found := false
	for file, text := range tr.text {
		if m := parameters.FindStringSubmatch(text); m != nil && (path.Ext(file) == ".h" || path.Ext(file) == ".c") {
			found = true
			if got, want := strings.Count(call[2], ","), strings.Count(m[1], ","); got != want {
				problems = append(problems, fmt.Sprintf("%s takes %d arguments, not %d", call[1], want+1, got+1))
			}
		}
	}
	if !found {
		problems = append(problems, "there is no C function "+call[1])
	}
	for _, constant := range regexp.MustCompile(`\b[A-Z]+_[A-Z_]+\b`).FindAllString(line, -1) {
		if !tr.has(constant, ".h") {
			problems = append(problems, "there is no "+constant)
		}
	}
	return problems
}

// has says whether a word stands in some file with one of the extensions.
func (tr *tree) has(word string, extensions ...string) bool {
	whole := regexp.MustCompile(`\b` + regexp.QuoteMeta(word) + `\b`)
	for file, text := range tr.text {
		if slices.Contains(extensions, path.Ext(file)) && strings.Contains(text, word) && whole.MatchString(text) {
			return true
		}
	}
	return false
}

// diagram looks for what has the form of the datapath's names: a drawing of the code must speak of what is there.
func (tr *tree) diagram(lines []string) (problems []string) {
	names := regexp.MustCompile(`\b[A-Za-z]+(?:_[A-Za-z0-9]+)+\b`).FindAllString(strings.Join(lines, "\n"), -1)
	if len(names) == 0 {
		return []string{"a picture in which nothing can be looked up"}
	}
	for _, name := range names {
		if !tr.has(name, ".h", ".c", ".go") {
			problems = append(problems, "nothing in the tree is called "+name)
		}
	}
	return problems
}

// signature looks for a function that is shown without its types.
func (tr *tree) signature(b Block, line string) []string {
	name := regexp.MustCompile(`^func (\w+)`).FindStringSubmatch(line)[1]
	for file, text := range tr.text {
		if path.Dir(file) == path.Dir(b.File) && strings.Contains(text, "\nfunc "+name+"(") {
			return nil
		}
	}
	if strings.HasPrefix(name, "Test") {
		wrong, _ := tr.module.Snippet([]string{line})
		return wrong
	}
	return []string{"there is no function " + name}
}

func (tr *tree) httpPath(b Block, line string) []string {
	where := regexp.MustCompile(`http://[^/]+(/\w+)`).FindStringSubmatch(line)
	for file, text := range tr.text {
		if where != nil && path.Dir(file) == path.Dir(b.File) && (strings.Contains(text, `"GET `+where[1]+`"`) ||
			strings.Contains(text, `"`+where[1]+`"`)) {
			return nil
		}
	}
	return []string{"nothing serves " + line}
}

func isFile(word string) bool {
	return regexp.MustCompile(`^[\w-]+\.(go|h|c|sh|txt|proto|yaml)$`).MatchString(word)
}

// fileNames looks for the files and folders that a list of files begins its lines with.
func (tr *tree) fileNames(b Block, line string) (problems []string) {
	for word := range strings.FieldsSeq(line) {
		if !isFile(word) && !strings.HasSuffix(word, "/") {
			break
		}
		if _, err := os.Stat(filepath.Join(tr.root, path.Dir(b.File), word)); err != nil {
			problems = append(problems, err.Error())
		}
	}
	return problems
}

// word looks for a word that a table explains in the code of the folder.
func (tr *tree) word(b Block, word string) []string {
	whole := regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(word) + `\b`)
	for file, text := range tr.text {
		if path.Dir(file) == path.Dir(b.File) && whole.MatchString(text) {
			return nil
		}
	}
	return []string{"nothing in the folder says " + word}
}
