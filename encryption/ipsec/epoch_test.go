package ipsec

import (
	"os"
	"path/filepath"
	"testing"
)

// No key is used twice: an epoch ends with the boot, with the list of used keys, and when it is told to.
func TestEpochs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ipsec")
	boot := filepath.Join(t.TempDir(), "boot_id")
	open := func(id string) *epochs {
		if err := os.WriteFile(boot, []byte(id+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := openEpochs(dir, boot)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.close)
		return e
	}
	claim := func(e *epochs, key string, want bool) {
		t.Helper()
		if fresh, err := e.claim(keys{Key: []byte(key)}); err != nil || fresh != want {
			t.Errorf("claim of %s: %v, %v", key, fresh, err)
		}
	}
	e := open("boot1")
	first := e.current()
	claim(e, "a", true)
	claim(e, "a", false)
	claim(e, "b", true)
	e.unclaim(keys{Key: []byte("b")})
	claim(e, "b", true)
	claim(e, "b", false)

	if e = open("boot1"); e.current() != first {
		t.Error("another epoch after a restart of the agent")
	}
	claim(e, "a", false)
	claim(e, "c", true)

	if err := e.renew("an epoch that has ended"); err != nil || e.current() != first {
		t.Errorf("renewed although it has been before: %v", err)
	}
	if err := e.renew(first); err != nil || e.current() == first {
		t.Errorf("not renewed: %v", err)
	}
	second := e.current()
	claim(e, "a", true)
	if e = open("boot1"); e.current() != second {
		t.Error("another epoch after a restart of the agent")
	}
	claim(e, "a", false)

	if e = open("boot2"); e.current() == second {
		t.Error("the same epoch after a boot")
	}
	third := e.current()
	if err := os.Remove(e.path("used")); err != nil {
		t.Fatal(err)
	}
	if e = open("boot2"); e.current() == third {
		t.Error("the same epoch without the list of used keys")
	}
}
