package encryption

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The key is made once, can be read by root only, and its public half is written where others find it.
func TestKey(t *testing.T) {
	dir := t.TempDir()
	first, err := openKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(dir, keyDir, privateFile)
	if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the private key's file: %v, %v", info, err)
	}
	if err := os.Remove(PublicKeyFile(dir)); err != nil {
		t.Fatal(err)
	}
	again, err := openKey(dir)
	if err != nil || again.private != first.private {
		t.Errorf("opened again: another key, %v", err)
	}
	public, err := os.ReadFile(PublicKeyFile(dir))
	if err != nil || strings.TrimSpace(string(public)) != first.private.PublicKey().String() {
		t.Errorf("the public key's file: %q, %v", public, err)
	}
	if err := os.WriteFile(private, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openKey(dir); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a file that is no key: %v", err)
	}
}

// TestKeyring: a rotation as its files and the keys in memory tell it. An agent that starts in the middle goes on with
// the key of the file.
func TestKeyring(t *testing.T) {
	dir := t.TempDir()
	open := func() *keyring {
		r, err := openKeyring(dir)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	before, changed := r.get()
	if r.looked() {
		t.Error("it is known at once that there is no rotation")
	}
	r.found()
	<-changed
	if err := Rotate(dir); err != nil || !r.looked() {
		t.Fatalf("looked %v, %v", r.looked(), err)
	}
	if err := Rotate(dir); err == nil {
		t.Error("two rotations at once")
	}
	for _, r := range []*keyring{r, open()} {
		next, ok, err := r.look()
		if err != nil || !ok || next.public == before.current.public {
			t.Fatalf("got %+v, %v, %v", next, ok, err)
		}
		r.begin(next)
	}
	if err := r.commit(); err != nil {
		t.Fatal(err)
	}
	r.inForce(before.current.public)
	k, _ := r.get()
	if !k.returning() || !k.unset || r.private(k.current.public) != k.next.private {
		t.Errorf("after the commit: %+v", k)
	}
	r.inForce(k.current.public)
	if now, _ := r.get(); now.unset || !now.current.since.After(k.current.since) {
		t.Error("the device has the key, and it is not known")
	}
	if err := r.finish(); err != nil {
		t.Fatal(err)
	}
	if k, _ := r.get(); k.rotating() || k.current.public == before.current.public {
		t.Errorf("after the rotation: %+v", k)
	}
	if _, ok, err := open().look(); ok || err != nil {
		t.Errorf("the rotation goes on: %v, %v", ok, err)
	}
}
