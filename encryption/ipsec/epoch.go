package ipsec

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"myelin/cluster"
	"myelin/internal/durable"
)

// bootIDFile has a random number that the kernel makes when it boots.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// epochs has the node's epoch, and the fingerprints of all keys that states have had in it. Since counters of states
// are lost with them, a key must not be used by a second state: its nonces would repeat, which breaks GCM, and packets
// could be replayed. The folder may be on a disk: an epoch is valid for one boot.
type epochs struct {
	dir string

	mu    sync.Mutex
	boot  string
	epoch string
	used  map[string]bool // by fingerprint; false: claimed, but no state has had the key
	log   *os.File        // of used, one a line
}

// openEpochs reads the node's epoch, or makes one.
func openEpochs(dir, bootIDFile string) (*epochs, error) {
	boot, err := os.ReadFile(bootIDFile)
	if err != nil {
		return nil, fmt.Errorf("read the boot's identifier: %w", err)
	}
	e := &epochs{dir: dir, boot: strings.TrimSpace(string(boot))}
	data, err := os.ReadFile(e.path("epoch"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the node's epoch: %w", err)
	}
	if fields := strings.Fields(string(data)); len(fields) == 2 && fields[0] == e.boot {
		e.epoch = fields[1]
		return e, e.readUsed()
	}
	return e, e.next()
}

func (e *epochs) path(name string) string { return filepath.Join(e.dir, name) }

// readUsed reads the fingerprints. If they can't be read, nothing is known of what was used.
func (e *epochs) readUsed() error {
	data, err := os.ReadFile(e.path("used"))
	if err != nil {
		return e.next()
	}
	e.used = map[string]bool{}
	for line := range strings.Lines(string(data)) {
		e.used[strings.TrimSpace(line)] = true
	}
	return e.openLog(os.O_APPEND)
}

func (e *epochs) openLog(flag int) (err error) {
	if e.log != nil {
		_ = e.log.Close()
	}
	if e.log, err = os.OpenFile(e.path("used"), os.O_CREATE|os.O_WRONLY|flag, 0o600); err != nil {
		return fmt.Errorf("open the list of used keys: %w", err)
	}
	return nil
}

// next makes another epoch. The caller has the lock, or is alone.
func (e *epochs) next() error {
	random := make([]byte, cluster.IPsecEpochSize)
	if _, err := rand.Read(random); err != nil {
		return fmt.Errorf("make an epoch: %w", err)
	}
	epoch := hex.EncodeToString(random)
	if err := durable.Write(e.path("epoch"), []byte(e.boot+" "+epoch+"\n")); err != nil {
		return err
	}
	e.epoch, e.used = epoch, map[string]bool{}
	return e.openLog(os.O_TRUNC)
}

// current is the node's epoch.
func (e *epochs) current() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.epoch
}

// renew ends an epoch, unless it has ended already.
func (e *epochs) renew(ended string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epoch != ended {
		return nil
	}
	return e.next()
}

// claim notes that a state is going to have the key, and reports whether none has had it before.
func (e *epochs) claim(k keys) (fresh bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	print := k.fingerprint()
	if used, noted := e.used[print]; noted {
		e.used[print] = true
		return !used, nil
	}
	if _, err := e.log.WriteString(print + "\n"); err != nil {
		return false, fmt.Errorf("write the list of used keys: %w", err)
	}
	e.used[print] = true
	return true, nil
}

// unclaim takes back a claim: the kernel has refused the state.
func (e *epochs) unclaim(k keys) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used[k.fingerprint()] = false
}

func (e *epochs) close() {
	if e.log != nil {
		_ = e.log.Close()
	}
}
