// Package sysdump collects what a bug report needs, without secrets, in one archive.
package sysdump

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// failuresFile lists what could not be collected.
const failuresFile = "failures.txt"

// Archive is a tar.gz that is being written. All that it gets is redacted. The first error to write is kept, and
// returned by Close.
type Archive struct {
	redactor *Redactor
	root     string
	now      time.Time
	gzip     *gzip.Writer
	tar      *tar.Writer
	failures []string
	err      error
}

// NewArchive writes to w. Names begin with root, and files are of the time now.
func NewArchive(w io.Writer, root string, now time.Time, r *Redactor) *Archive {
	z := gzip.NewWriter(w)
	return &Archive{redactor: r, root: root, now: now, gzip: z, tar: tar.NewWriter(z)}
}

// add writes a file. Names in .json and .yaml are read as that; what they hold must be so.
func (a *Archive) add(name string, data []byte) {
	var err error
	switch path.Ext(name) {
	case ".json":
		data, err = a.redactor.json(data)
	case ".yaml":
		data, err = a.redactor.yaml(data)
	default:
		data = []byte(a.redactor.text(string(data)))
	}
	if err != nil {
		a.Fail(name, fmt.Errorf("left out, since its secrets can't be found: %w", err))
		return
	}
	a.write(name, data)
}

// addObject writes v as JSON.
func (a *Archive) addObject(name string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		a.Fail(name, err)
		return
	}
	a.add(name, data)
}

// Fail notes that something could not be collected.
func (a *Archive) Fail(name string, err error) {
	for line := range strings.Lines(err.Error()) {
		a.failures = append(a.failures, name+": "+strings.TrimSpace(line))
	}
}

// Failures are the lines of failures.txt.
func (a *Archive) Failures() []string { return a.failures }

// Learn has secrets that are known taken out of what is added from now on.
func (a *Archive) Learn(values ...string) { a.redactor.learn(values...) }

// AddFile adds a file of this machine, of a long one the end.
func (a *Archive) AddFile(name, file string) {
	data, err := readTail(file)
	if err != nil {
		a.Fail(name, err)
		return
	}
	a.add(name, data)
}

// Merge adds the files of another archive, whose root becomes the folder at prefix.
func (a *Archive) Merge(prefix string, r io.Reader) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	t := tar.NewReader(z)
	for {
		header, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		_, name, inside := strings.Cut(path.Clean(header.Name), "/")
		if header.Typeflag != tar.TypeReg || !inside || strings.HasPrefix(name, "../") {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(t, maxFile))
		if err != nil {
			return fmt.Errorf("read %s of the archive: %w", name, err)
		}
		a.add(path.Join(prefix, name), data)
	}
}

// maxFile bounds a file that another node sent, in bytes.
const maxFile = 256 << 20

// Close ends the archive with the list of failures.
func (a *Archive) Close() error {
	if len(a.failures) > 0 {
		a.add(failuresFile, []byte(strings.Join(a.failures, "\n")+"\n"))
	}
	return errors.Join(a.err, a.tar.Close(), a.gzip.Close())
}

func (a *Archive) write(name string, data []byte) {
	if a.err != nil {
		return
	}
	header := &tar.Header{
		Typeflag: tar.TypeReg, Name: path.Join(a.root, a.redactor.replacer.Replace(name)), Size: int64(len(data)),
		Mode: 0o600, ModTime: a.now,
	}
	if a.err = a.tar.WriteHeader(header); a.err == nil {
		_, a.err = a.tar.Write(data)
	}
}

func newReader(data []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(data)) }
