package ui

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDistIsFresh: the committed page is built of the committed sources, by the hashes that the build has written.
func TestDistIsFresh(t *testing.T) {
	built, err := os.ReadFile("dist/SOURCES.sha256")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, root := range []string{"index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts",
		"public", "src"} {
		err := filepath.WalkDir(filepath.Join("web", root), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				names = append(names, strings.TrimPrefix(filepath.ToSlash(path), "web/"))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(names)
	var now strings.Builder
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join("web", name))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&now, "%x  %s\n", sha256.Sum256(data), name)
	}
	if now.String() != string(built) {
		t.Errorf("hubble/ui/dist is stale (make ui): it was built of\n%snow there are\n%s", built, now.String())
	}
}
