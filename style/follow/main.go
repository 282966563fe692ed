// Command follow measures how far a reader of the datapath has to jump: it reads
// the functions that an entry point calls, each where it is called first, and
// counts the jumps to a definition in another file (climbs) and back (returns).
//
//	go run ./style/follow [-root DIR] [-v] [from_pod]
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	root := flag.String("root", ".", "the tree")
	verbose := flag.Bool("v", false, "print each jump")
	flag.Parse()
	entry := "from_pod"
	if flag.NArg() > 0 {
		entry = flag.Arg(0)
	}
	functions, err := parse(os.DirFS(*root))
	if err == nil && functions[entry].file == "" {
		err = fmt.Errorf("there is no function %s", entry)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "follow:", err)
		os.Exit(1)
	}
	w := walk(functions, entry)
	if *verbose {
		fmt.Println(strings.Join(w.jumps, "\n"))
	}
	fmt.Printf("%s: %d functions in %d files, %d climbs, %d of them to another folder, and as many returns\n",
		entry, len(w.seen), len(w.files), len(w.jumps), w.folders)
}

// function is a C function: the file that defines it, and what it calls.
type function struct {
	file  string
	calls []string
}

// patterns of the tree's C: definitions begin and end at the start of a line.
func patterns() (comment, definition, call *regexp.Regexp) {
	return regexp.MustCompile(`(?s)/\*.*?\*/`),
		regexp.MustCompile(`(?sm)^(?:(?:static|INLINE|APART|enum|struct|const) )*[a-z_]\w*[ *]+` +
			`(\w+)\([^;{]*\)\n\{\n(.*?)\n\}$`),
		regexp.MustCompile(`\b([a-z_]\w*)\(`)
}

// parse finds the functions of all C files.
func parse(tree fs.FS) (map[string]function, error) {
	comment, definition, call := patterns()
	functions := map[string]function{}
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if ext := filepath.Ext(path); err != nil || d.IsDir() || ext != ".h" && ext != ".c" {
			return err
		}
		text, err := fs.ReadFile(tree, path)
		if err != nil {
			return err
		}
		for _, m := range definition.FindAllSubmatch(comment.ReplaceAll(text, nil), -1) {
			f := function{file: path}
			for _, c := range call.FindAllSubmatch(m[2], -1) {
				f.calls = append(f.calls, string(c[1]))
			}
			functions[string(m[1])] = f
		}
		return nil
	})
	return functions, err
}

// way is how a reader follows an entry point.
type way struct {
	functions map[string]function
	seen      map[string]bool
	files     map[string]bool
	jumps     []string
	folders   int // jumps to another folder
}

func walk(functions map[string]function, entry string) *way {
	w := &way{functions: functions, seen: map[string]bool{}, files: map[string]bool{}}
	w.visit(entry)
	return w
}

func (w *way) visit(name string) {
	from := w.functions[name]
	w.seen[name], w.files[from.file] = true, true
	for _, called := range from.calls {
		to := w.functions[called]
		if to.file == "" || w.seen[called] {
			continue
		}
		if to.file != from.file {
			w.jumps = append(w.jumps, fmt.Sprintf("%s in %s: %s in %s", name, from.file, called, to.file))
		}
		if filepath.Dir(to.file) != filepath.Dir(from.file) {
			w.folders++
		}
		w.visit(called)
	}
}
