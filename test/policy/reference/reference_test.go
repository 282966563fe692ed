package reference

import (
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestImports: the reference shares nothing with what it is compared with.
func TestImports(t *testing.T) {
	for _, folder := range []string{".", "../../../policy/ciliumv2"} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			name := folder + "/" + entry.Name()
			if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(imported, "myelin/") && imported != "myelin/policy/ciliumv2" {
					t.Errorf("%s imports %s", name, imported)
				}
			}
		}
	}
}
