package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every test of the lab ring has a row, every row a test, and every folder is there.
func TestRows(t *testing.T) {
	t.Chdir(root)
	all, err := readTests("test/rings/tests.txt")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{lab: declared(t, "test/lab"), unit: declared(t, ".")}
	for _, row := range all {
		// One that is skipped by its name is skipped in every package.
		if n := strings.Count(tests[row.ring], "\nfunc "+row.name+"(t *testing.T)"); n != 1 {
			t.Errorf("%s: %d tests of the %s ring have this name, want one", row.name, n, row.ring)
		}
		for _, folder := range row.folders {
			if _, err := os.Stat(folder); err != nil {
				t.Errorf("%s: %v", row.name, err)
			}
		}
		if _, err := regexp.Compile(row.core); err != nil && row.core != "-" {
			t.Errorf("%s: core %q: %v", row.name, row.core, err)
		}
	}
	declaration := regexp.MustCompile(`\nfunc (Test\w+)\(t \*testing\.T\)`)
	for _, found := range declaration.FindAllStringSubmatch(tests[lab], -1) {
		if !slices.ContainsFunc(all, func(row test) bool { return row.ring == lab && row.name == found[1] }) {
			t.Errorf("%s has no row in test/rings/tests.txt: add lab %[1]s SECONDS CORE FOLDERS WHY", found[1])
		}
	}
}

// declared is the text of all test files below a folder.
func declared(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() && path == filepath.Join("test", "lab", "oracle") {
			return filepath.SkipDir // of the unit ring
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestReadTest(t *testing.T) {
	got, err := readTest("lab TestA 3.5 ^native$ nat,flow the one that matters")
	want := test{ring: lab, name: "TestA", seconds: 3.5, core: "^native$", why: "the one that matters"}
	want.folders = []string{"nat", "flow"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for line, want := range map[string]string{
		"lab TestA 3 all nat":        "5 columns",
		"vm TestA 3 all nat why":     `ring "vm"`,
		"lab TestA soon all nat why": `seconds "soon"`,
		"lab TestA -1 all nat why":   `seconds "-1"`,
		"unit TestA 3 all nat why":   `core "all"`,
	} {
		if _, err := readTest(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
	file := filepath.Join(t.TempDir(), "tests.txt")
	const twice = "# comment\n\nlab TestA 1 all - why\nlab TestA 1 all - why\n"
	if err := os.WriteFile(file, []byte(twice), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readTests(file); err == nil || !strings.Contains(err.Error(), "TestA has two rows") {
		t.Error(err)
	}
}

func TestPatterns(t *testing.T) {
	all := tests{
		{ring: lab, name: "TestA", core: "all", seconds: 1},
		{ring: lab, name: "TestB", core: "-", seconds: 2},
		{ring: lab, name: "TestC", core: "^(x|y)$/^z$", seconds: 3},
		{ring: unit, name: "TestD", core: "-", seconds: 4},
		{ring: unit, name: "TestE", core: "-", seconds: 5},
	}
	if got, want := all.coreLab(), "^TestA$|^TestC$/^(x|y)$/^z$"; got != want {
		t.Errorf("core of the lab: %s, want %s", got, want)
	}
	if got, want := all.slowUnit(), "^(TestD|TestE)$"; got != want {
		t.Errorf("left out of unit: %s, want %s", got, want)
	}
	if got, want := all.outsideCore().pattern(), "^(TestB|TestC)$"; got != want {
		t.Errorf("outside of the core: %s, want %s", got, want)
	}
	var seconds []float64
	for _, chunk := range all.chunks(2) {
		seconds = append(seconds, chunk.expected())
	}
	if slices.Sort(seconds); !slices.Equal(seconds, []float64{7, 8}) {
		t.Errorf("two lists take %v", seconds)
	}
}
