package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"myelin/cluster"
)

// maxDepth bounds directories in directories.
const maxDepth = 16

// inode is the identity of a file or directory.
type inode struct{ dev, ino uint64 }

// location is where a file was found.
type location struct {
	path   string // its directory is without symbolic links
	target string // and here the file is too
}

// tree is what a walk found.
type tree struct {
	files   map[string]location // by path below the root
	watched map[string]inode    // directories, without symbolic links
	dirs    map[string]string   // their paths below the root
	links   bool                // there are symbolic links
	seen    map[inode]bool
	failed  []string // paths that can't be read
}

// unreadable reports whether rel is, or is below, what can't be read.
func (t *tree) unreadable(rel string) bool {
	return slices.ContainsFunc(t.failed, func(dir string) bool {
		return rel == dir || strings.HasPrefix(rel, dir+string(filepath.Separator))
	})
}

type walker struct {
	*tree
	watch    *watcher
	problems []*cluster.Problem
}

// walk finds the files. The error says that the root can't be read.
func (s *Source) walk(w *watcher) (*tree, []*cluster.Problem, error) {
	k := walker{watch: w, tree: &tree{files: map[string]location{}, watched: map[string]inode{},
		dirs: map[string]string{}, seen: map[inode]bool{}}}
	if err := k.dir(s.Dir, "", 0); err != nil {
		return nil, nil, err
	}
	return k.tree, k.problems, nil
}

// dir reads one directory. Names that begin with a dot are left out: editors
// and the kubelet (..data) keep what is not yet, or no longer, valid in them.
func (k *walker) dir(path, rel string, depth int) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", path)
	}
	id := identify(info)
	if k.seen[id] {
		return nil // by another link: its objects would be duplicates
	}
	k.seen[id] = true
	k.watched[real], k.dirs[real] = id, rel
	k.watch.add(real, id)
	entries, err := os.ReadDir(real)
	if err != nil {
		return err
	}
	for _, e := range entries {
		k.links = k.links || e.Type()&fs.ModeSymlink != 0
		if !strings.HasPrefix(e.Name(), ".") {
			k.entry(filepath.Join(real, e.Name()), filepath.Join(rel, e.Name()), e.Type(), depth)
		}
	}
	return nil
}

func isManifest(path string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path))
}

func (k *walker) entry(path, rel string, mode fs.FileMode, depth int) {
	wanted := isManifest(path)
	target := path
	if mode&fs.ModeSymlink != 0 {
		info, err := os.Stat(path)
		if err == nil {
			target, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			if wanted {
				k.fail(rel, err)
			}
			return
		}
		mode = info.Mode().Type()
		if wanted && mode.IsRegular() {
			k.watchParent(target)
		}
	}
	switch {
	case mode.IsDir() && depth == maxDepth:
		k.fail(rel, errors.New("too many directories in directories"))
	case mode.IsDir():
		if err := k.dir(path, rel, depth+1); err != nil && !errors.Is(err, fs.ErrNotExist) {
			k.fail(rel, err)
		}
	case !wanted:
	case mode.IsRegular():
		k.files[rel] = location{path: path, target: target}
	default:
		k.fail(rel, errors.New("is not a regular file"))
	}
}

// watchParent watches the directory of a link's target, which may be outside.
func (k *walker) watchParent(target string) {
	dir := filepath.Dir(target)
	if info, err := os.Stat(dir); err == nil {
		k.watched[dir] = identify(info)
		k.watch.add(dir, identify(info))
	}
}

func (k *walker) fail(rel string, err error) {
	k.failed = append(k.failed, rel)
	k.problems = append(k.problems, &cluster.Problem{File: rel, Reason: "can't be read: " + plain(err)})
}

// plain is an error without the path, which the problem names already.
func plain(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

func identify(info fs.FileInfo) inode {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}
	}
	return inode{dev: st.Dev, ino: st.Ino}
}
