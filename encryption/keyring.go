package encryption

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/cluster"
	"myelin/internal/durable"
)

// Files of a key that the node changes to. Their being there is what a rotation consists of: it goes on after a restart
// of the agent. While the private key is another one than the node's, peers learn it; when it is the same, they return
// to the usual device.
const (
	nextFile       = "next.key"
	nextPublicFile = "next-public.key"
)

// NextPublicKeyFile is where an agent with this run directory writes the public key that the node changes to.
func NextPublicKeyFile(runDir string) string { return filepath.Join(runDir, keyDir, nextPublicFile) }

// errRotating says that a rotation is under way.
var errRotating = errors.New("the node rotates its key already: see `myelin encrypt device`")

// Rotate makes the key that the node changes to. The agent of the run directory sees it within a second, or when it
// starts.
func Rotate(runDir string) error {
	dir := filepath.Join(runDir, keyDir)
	if _, err := os.Stat(filepath.Join(dir, privateFile)); err != nil {
		return fmt.Errorf("the node has no key to rotate: %w", err)
	}
	path := filepath.Join(dir, nextFile)
	if _, err := os.Stat(path); err == nil {
		return errRotating
	}
	private, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	return durable.Write(path, []byte(private.String()+"\n"))
}

// keys are the node's key and the one that it changes to, whose public half is empty without a rotation.
type keys struct {
	current, next nodeKey

	unset bool // no device has the current one yet
}

// rotating reports whether the node changes its key, and returning whether it has, and only the device is still
// another one.
func (k *keys) rotating() bool  { return k.next.public != "" }
func (k *keys) returning() bool { return k.rotating() && k.next.public == k.current.public }

// known reports whether the node's row has the keys, as other nodes see them.
func (k *keys) known(self *cluster.Node) bool {
	return self.WireGuardKey == k.current.public && self.NextWireGuardKey == k.next.public
}

// keyring has the node's keys, and the files that they are in.
type keyring struct {
	runDir string

	mu      sync.Mutex
	keys    keys
	seen    bool // it was looked for a rotation
	changed chan struct{}
}

// openKeyring reads the keys, and makes one if there is none.
func openKeyring(runDir string) (*keyring, error) {
	current, err := openKey(runDir)
	if err != nil {
		return nil, err
	}
	return &keyring{runDir: runDir, keys: keys{current: current}, changed: make(chan struct{})}, nil
}

// get returns the keys, and a channel that is closed when they change.
func (r *keyring) get() (keys, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys, r.changed
}

// private is the private half of one of the node's keys.
func (r *keyring) private(public string) wgtypes.Key {
	k, _ := r.get()
	if k.next.public == public {
		return k.next.private
	}
	return k.current.private
}

func (r *keyring) set(k keys) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k != r.keys {
		r.keys = k
		r.wake()
	}
}

// looked reports whether it is known if the node rotates its key.
func (r *keyring) looked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// found notes that.
func (r *keyring) found() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.seen {
		r.seen = true
		r.wake()
	}
}

// look returns the key that Rotate has made, if the rotation has not begun.
func (r *keyring) look() (next nodeKey, ok bool, err error) {
	if k, _ := r.get(); k.rotating() {
		return next, false, nil
	}
	next, err = readKey(filepath.Join(r.runDir, keyDir, nextFile))
	if errors.Is(err, fs.ErrNotExist) {
		return next, false, nil
	}
	return next, err == nil, err
}

// begin starts the rotation.
func (r *keyring) begin(next nodeKey) {
	k, _ := r.get()
	k.next = next
	r.set(k)
}

// announce writes public keys, for those who distribute them without an API server.
func (r *keyring) announce(key, next string) error {
	if err := writePublic(PublicKeyFile(r.runDir), key); err != nil || next == "" {
		return err
	}
	return writePublic(NextPublicKeyFile(r.runDir), next)
}

// commit makes the next key the node's.
func (r *keyring) commit() error {
	k, _ := r.get()
	path := filepath.Join(r.runDir, keyDir, privateFile)
	if err := durable.Write(path, []byte(k.next.private.String()+"\n")); err != nil {
		return err
	}
	k.current, k.current.since, k.unset = k.next, time.Now(), true
	r.set(k)
	return nil
}

// inForce notes that the usual device has a key from now on: sessions that it made before are another key's.
func (r *keyring) inForce(public string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys.unset && r.keys.current.public == public {
		r.keys.current.since, r.keys.unset = time.Now(), false
		r.wake()
	}
}

// wake has those look that wait for a change. The lock is held.
func (r *keyring) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// finish ends the rotation.
func (r *keyring) finish() error {
	for _, name := range []string{nextFile, nextPublicFile} {
		if err := os.Remove(filepath.Join(r.runDir, keyDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("end the rotation of the node's key: %w", err)
		}
	}
	k, _ := r.get()
	k.next = nodeKey{}
	r.set(k)
	return nil
}
