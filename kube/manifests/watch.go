package manifests

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watcher watches every directory of the tree. A nil watcher watches nothing.
type watcher struct {
	*fsnotify.Watcher
	root    string
	watched map[string]inode
}

func newWatcher(root string) (*watcher, error) {
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("create a watch: %w", err)
	}
	w := &watcher{Watcher: fs, root: root, watched: map[string]inode{}}
	// The parent tells of a root that appears or is exchanged. It may be
	// missing too: then the timer has to do.
	_ = fs.Add(filepath.Dir(root))
	return w, nil
}

func (w *watcher) close() {
	if w != nil {
		w.Watcher.Close()
	}
}

// wait returns when something happened and it is quiet again, or the timer
// fires. Names of what happened are added to changed. lost says that the
// kernel dropped events.
func (w *watcher) wait(ctx context.Context, timer <-chan time.Time, changed map[string]bool) (lost bool, err error) {
	var events chan fsnotify.Event // nil blocks for ever
	var errs chan error
	if w != nil {
		events, errs = w.Events, w.Errors
	}
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-timer:
			return false, nil
		case <-errs:
			return true, nil
		case e, ok := <-events:
			if !ok {
				return false, errors.New("the watch has ended")
			}
			if w.relevant(e) {
				changed[e.Name] = true
				return !w.collect(ctx, changed), nil
			}
		}
	}
}

// relevant leaves out events beside the root, in its parent.
func (w *watcher) relevant(e fsnotify.Event) bool {
	if filepath.Dir(e.Name) != filepath.Dir(w.root) || w.watchedTree(filepath.Dir(e.Name)) {
		return true
	}
	return filepath.Base(e.Name) == filepath.Base(w.root)
}

func (w *watcher) watchedTree(dir string) bool {
	_, ok := w.watched[dir]
	return ok
}

// collect takes further events until it is quiet. It reports false where
// events were lost.
func (w *watcher) collect(ctx context.Context, changed map[string]bool) bool {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	silence := time.NewTimer(quiet)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-deadline.C:
			return true
		case <-silence.C:
			return true
		case e, ok := <-w.Events:
			if !ok {
				return true
			}
			changed[e.Name] = true
			silence.Reset(quiet)
		case <-w.Errors:
			return false
		}
	}
}

// add watches a directory, before it is read, so that no change falls between.
// path has no symbolic link in it.
func (w *watcher) add(path string, id inode) {
	if w == nil {
		return
	}
	if old, ok := w.watched[path]; ok && old != id {
		// Another directory has the name now; the kernel watches the old one.
		_ = w.Remove(path)
	}
	// A watch that is there is not made again, but one that ended, because the
	// directory was away for a moment, is. Where none can be had
	// (fs.inotify.max_user_watches), the rescan finds the change.
	if err := w.Add(path); err == nil {
		w.watched[path] = id
	}
}

// settle ends the watches of directories that are gone. It reports whether it
// ended any: the kernel has one watch for a directory that was moved, and then
// lost that of the new name, until the next walk adds it again.
func (w *watcher) settle(found *tree) (ended bool) {
	if w == nil {
		return false
	}
	for path := range w.watched {
		if _, ok := found.watched[path]; !ok {
			_ = w.Remove(path)
			delete(w.watched, path)
			ended = true
		}
	}
	return ended
}
