// Package sysdumptest reads the archives of sysdump for tests.
package sysdumptest

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
)

// Unpack returns the files of an archive by name, and fails the test if one may
// be read by others than its owner.
func Unpack(t testing.TB, r io.Reader) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for a := tar.NewReader(z); ; {
		header, err := a.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		if header.Mode != 0o600 {
			t.Errorf("%s has mode %o", header.Name, header.Mode)
		}
		files[header.Name] = string(data)
	}
}

// UnpackBelowRoot is Unpack with names below the archive's only folder.
func UnpackBelowRoot(t testing.TB, r io.Reader) map[string]string {
	t.Helper()
	below := map[string]string{}
	for name, text := range Unpack(t, r) {
		_, name, _ = strings.Cut(name, "/")
		below[name] = text
	}
	return below
}
