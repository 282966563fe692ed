package manifests

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"myelin/cluster"
)

// maxFile bounds a file, in bytes.
const maxFile = 16 << 20

// file is what is known of one file.
type file struct {
	rel   string
	stamp stamp
	// docs are the objects that it held when it was last read.
	docs []document
	// parts are the documents that the file had then, and what each said.
	parts map[partID]content
	// held are objects of an earlier content that the present one may still
	// mean: they stay in force until it is known that they are gone.
	held     []key
	problems []*cluster.Problem
	unused   map[string]int
	torn     int // reads in a row that met a writer
	// failing is why docs are of an earlier content; empty if they are not.
	failing string
}

// maxTorn is how many torn reads go without saying.
const maxTorn = 10

// stamp changes with a file's content. The change time makes it safe against
// tools that set the modification time.
type stamp struct {
	inode
	size                int64
	modified, attribute syscall.Timespec
}

// refresh reads the file where it changed, and reports whether it is to be
// looked at again soon.
func (f *file) refresh(at location, now time.Time) (again bool) {
	info, err := os.Stat(at.path)
	if errors.Is(err, os.ErrNotExist) {
		return true // gone since the walk: the next one settles it
	}
	if err != nil {
		return f.unreadable(err)
	}
	before := stampOf(info)
	if before == f.stamp {
		return false
	}
	data, after, err := load(at.path)
	if err != nil {
		return f.unreadable(err)
	}
	if before != after {
		// Being written: half of a file can look like a whole one.
		if f.torn++; f.torn > maxTorn {
			f.unreadable(errors.New("it changes while it is read"))
		}
		return true
	}
	f.stamp, f.torn = before, 0
	c, parts := read(data, f.rel, now, f.parts)
	if c.isEmpty() && f.hasObjects() {
		// Truncated, it may be about to be written. Only a file that is deleted, or
		// has a document, says that its objects are gone.
		c.incomplete = true
		c.problems = []*cluster.Problem{{File: f.rel,
			Reason: "has no document: what it held stays until it is deleted or has one"}}
	}
	f.parts, f.failing = parts, ""
	f.replace(c)
	return false
}

// isEmpty reports whether there is nothing in a file, not even something wrong.
func (c *content) isEmpty() bool {
	return len(c.docs)+len(c.problems)+len(c.unused)+len(c.suspects) == 0 && !c.incomplete
}

func (f *file) hasObjects() bool { return len(f.docs) > 0 || len(f.held) > 0 }

// unreadable keeps what is in force; a read is tried again with each rescan.
func (f *file) unreadable(err error) bool {
	f.stamp = stamp{}
	f.failing = "its file can't be read: " + plain(err)
	f.problems = []*cluster.Problem{{File: f.rel, Reason: "can't be read: " + plain(err)}}
	return false
}

// replace takes new content. Where not all of it could be read, objects that it
// seems to lack may still be meant.
func (f *file) replace(c content) {
	last := f.held
	for _, d := range f.docs {
		last = append(last, d.key)
	}
	present := map[key]bool{}
	for _, d := range c.docs {
		present[d.key] = true
	}
	f.keep(c.docs)
	f.held = nil
	for _, k := range last {
		if !present[k] && (c.incomplete || c.suspects[cluster.Key{Namespace: k.namespace, Name: k.name}]) {
			f.held = append(f.held, k)
			present[k] = true // once is enough
		}
	}
	f.docs, f.problems, f.unused = c.docs, c.problems, c.unused
}

// keep puts rows that say the same as before in the place of new ones: whoever
// compares them later is done at once.
func (f *file) keep(docs []document) {
	before := map[key]any{}
	for _, d := range f.docs {
		before[d.key] = d.row
	}
	for i, d := range docs {
		if old := before[d.key]; old != nil && old != d.row && equal(old, d.row) {
			docs[i].row = old
		}
	}
}

// load returns the content and the stamp after it was read.
func load(path string) ([]byte, stamp, error) {
	// Not blocking, should it have become a FIFO.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, stamp{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, stamp{}, err
	}
	if len(data) > maxFile {
		return nil, stamp{}, fmt.Errorf("is longer than %d MiB", maxFile>>20)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, stamp{}, errors.New("is not a regular file")
	}
	return data, stampOf(info), nil
}

func stampOf(info os.FileInfo) stamp {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{size: info.Size()}
	}
	return stamp{inode: identify(info), size: info.Size(), modified: st.Mtim, attribute: st.Ctim}
}
