package cni

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// asideSuffix ends the name of a configuration that Exclude has put aside.
const asideSuffix = ".myelin_bak"

// Exclude puts the configurations of other networks in dir aside, so that no
// runtime takes one of them while ours is away (cni.exclusive). It returns their
// names; what it can't rename is an error, and the others are done all the same.
func Exclude(dir string) (aside []string, err error) {
	return rename(dir, func(name string) (to string, other bool) {
		// What runtimes read: libcni.ConfFiles.
		read := slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name))
		return name + asideSuffix, read && name != ConflistName
	})
}

// Readmit gives configurations that Exclude has put aside their names back, where
// no new ones were written, and returns them.
func Readmit(dir string) (back []string, err error) {
	return rename(dir, func(name string) (to string, aside bool) {
		to, aside = strings.CutSuffix(name, asideSuffix)
		if _, err := os.Lstat(filepath.Join(dir, to)); err == nil {
			return "", false
		}
		return to, aside
	})
}

// rename gives the files of dir that to wants renamed new names, and returns their
// old ones. A directory that is not there has none.
func rename(dir string, to func(name string) (string, bool)) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read CNI configurations: %w", err)
	}
	var errs []error
	for _, e := range entries {
		name, wanted := to(e.Name())
		if !wanted || e.IsDir() {
			continue
		}
		if err := os.Rename(filepath.Join(dir, e.Name()), filepath.Join(dir, name)); err != nil {
			errs = append(errs, fmt.Errorf("rename a CNI configuration: %w", err))
			continue
		}
		names = append(names, e.Name())
	}
	return names, errors.Join(errs...)
}
