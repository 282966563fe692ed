package style

import (
	"bytes"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = ".."

// tree is every file that the rules hold for, by slash path.
func tree(t *testing.T) map[string][]byte {
	t.Helper()
	names, err := Files(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 10 {
		t.Fatalf("only %d files in the tree: %v", len(names), names)
	}
	files := map[string][]byte{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // removed since it was listed
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) < 0 {
			files[name] = text
		}
	}
	return files
}

func having(files map[string][]byte, generated bool, extensions ...string) map[string][]byte {
	some := map[string][]byte{}
	for name, text := range files {
		if slices.Contains(extensions, path.Ext(name)) && (generated || !isGenerated(text)) {
			some[name] = text
		}
	}
	return some
}

func rows(t *testing.T, name string, fields int) [][]string {
	t.Helper()
	read, err := Rows(name, fields)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func TestTree(t *testing.T) {
	files := tree(t)
	var found []Finding
	found = append(found, goFindings(t, files)...)
	for name, text := range having(files, false, ".c", ".h") {
		found = append(append(found, length(name, text)...), cFile(name, text)...)
	}
	for name, text := range files {
		if name != "style/forbidden.txt" {
			found = append(found, forbiddenText(name, text, first(rows(t, "forbidden.txt", 2)))...)
		}
	}
	found = append(found, textFindings(t, files)...)
	found = append(found, headerFindings(t, files)...)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	found = append(found, checkFolders(names, func(name string) ([]byte, error) {
		return os.ReadFile(filepath.Join(root, name))
	})...)
	direct, err := directModules(files["go.mod"], having(files, true, ".go"))
	if err != nil {
		t.Fatal(err)
	}
	found = append(found, unlisted(direct, first(rows(t, "dependencies.txt", 2)))...)
	if !bytes.Contains(files["CHANGELOG.md"], []byte("\n## Unreleased\n")) {
		found = append(found, Finding{"changelog", "CHANGELOG.md", "no section Unreleased"})
	}
	report(t, found)
}

func goFindings(t *testing.T, files map[string][]byte) []Finding {
	var imports []importRule
	for _, row := range rows(t, "imports.txt", 3) {
		name, exact := strings.CutPrefix(row[0], "=")
		rule := importRule{Path: name, Exact: exact}
		if row[1] != "-" {
			rule.Folders = strings.Split(row[1], ",")
		}
		imports = append(imports, rule)
	}
	found, err := unusedExports("myelin", having(files, true, ".go"))
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]map[string][]byte{}
	for name, text := range having(files, false, ".go") {
		inFile, err := goFile(name, text, imports)
		if err != nil {
			t.Fatal(err)
		}
		found = append(append(found, length(name, text)...), inFile...)
		if packages[path.Dir(name)] == nil {
			packages[path.Dir(name)] = map[string][]byte{}
		}
		packages[path.Dir(name)][name] = text
	}
	for _, inFolder := range packages {
		together, err := goPackage(inFolder)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, together...)
	}
	return found
}

func textFindings(t *testing.T, files map[string][]byte) []Finding {
	words, err := newWords(rows(t, "words.txt", 3))
	if err != nil {
		t.Fatal(err)
	}
	var found []Finding
	for name, text := range files {
		if !measured(name, text) {
			continue
		}
		found = append(append(found, lineWidth(name, text)...), terms(name, text, words)...)
	}
	return found
}

func headerFindings(t *testing.T, files map[string][]byte) []Finding {
	order := first(rows(t, "includes.txt", 2))
	var found []Finding
	headers := slices.Sorted(maps.Keys(having(files, false, ".h")))
	for _, name := range headers {
		found = append(found, includes(name, files[name], order)...)
		found = append(found, prototypes(name, files[name])...)
	}
	if compiler := Compiler(); compiler != "" {
		broken, err := SelfContained(root, compiler, headers)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, broken...)
	}
	return found
}

// report fails for each finding that exceptions.txt does not have, and for each row that is not needed.
func report(t *testing.T, found []Finding) {
	exceptions := rows(t, "exceptions.txt", 3)
	used := make([]bool, len(exceptions))
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
	for _, f := range found {
		i := slices.IndexFunc(exceptions, func(row []string) bool { return covers(row[0], row[1], f) })
		if i < 0 {
			t.Error(f)
			continue
		}
		used[i] = true
	}
	for i, row := range exceptions {
		if !used[i] {
			t.Errorf("style/exceptions.txt: nothing needs %q any more", strings.Join(row[:2], " "))
		}
	}
}

func first(rows [][]string) []string {
	var fields []string
	for _, row := range rows {
		fields = append(fields, row[0])
	}
	return fields
}
