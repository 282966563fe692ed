package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"
	"time"

	"myelin/status/sysdump/sysdumptest"
)

func TestArchive(t *testing.T) {
	var inner, outer bytes.Buffer
	a := NewArchive(&inner, "inner", time.Unix(0, 0), NewRedactor())
	a.add("agent.log", []byte("token="+password+"\n"))
	a.add("bad.yaml", []byte("password: "+password+"\n\tno: yaml"))
	a.add("bad.json", []byte(`{"password":"`+password))
	a.Fail("maps", errors.New("no such map\ntoken="+password))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b := NewArchive(&outer, "outer", time.Unix(0, 0), NewRedactor())
	b.addObject("a.json", map[string]int{"n": 1})
	if err := b.Merge("nodes/n1", &inner); err != nil {
		t.Fatal(err)
	}
	if err := b.Merge("nodes/n2", strings.NewReader("no archive")); err == nil {
		t.Error("what is no archive is merged")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	files := sysdumptest.Unpack(t, &outer)
	failures := files["outer/nodes/n1/failures.txt"]
	if len(files) != 3 || files["outer/a.json"] != "{\n  \"n\": 1\n}\n" ||
		files["outer/nodes/n1/agent.log"] != "token="+redacted+"\n" {
		t.Errorf("%q", files)
	}
	for _, want := range []string{"bad.yaml: left out, since its secrets can't be found: ", "bad.json: left out",
		"maps: no such map\n", "maps: token=" + redacted} {
		if !strings.Contains(failures, want) {
			t.Errorf("no %q in\n%s", want, failures)
		}
	}
}

// TestMergeStaysInside: names of another node's archive can't lead out of its folder.
func TestMergeStaysInside(t *testing.T) {
	var evil, out bytes.Buffer
	z := gzip.NewWriter(&evil)
	w := tar.NewWriter(z)
	for _, name := range []string{"root/../../x", "root/a/../../../y", "/etc/passwd", "root/ok"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	a := NewArchive(&out, "outer", time.Unix(0, 0), NewRedactor())
	if err := errors.Join(a.Merge("nodes/n1", &evil), a.Close()); err != nil {
		t.Fatal(err)
	}
	for name := range sysdumptest.Unpack(t, &out) {
		if !strings.HasPrefix(name, "outer/nodes/n1/") || strings.Contains(name, "..") {
			t.Errorf("%s is outside", name)
		}
	}
}
