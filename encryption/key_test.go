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
