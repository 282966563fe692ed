package encryption

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/internal/durable"
)

// The node's keys are in files below the run directory, which outlives the agent. Each has 32 bytes in base64, as
// wg(8) writes keys. The public one is for those who distribute keys without an API server.
const (
	keyDir      = "wireguard"
	privateFile = "private.key"
	publicFile  = "public.key"
)

// Dir is the directory of keys, and of sockets of processes, in an agent's run directory.
func Dir(runDir string) string { return filepath.Join(runDir, keyDir) }

// PublicKeyFile is where an agent with this run directory writes the node's public key.
func PublicKeyFile(runDir string) string { return filepath.Join(runDir, keyDir, publicFile) }

// nodeKey is the node's key, and when it was made.
type nodeKey struct {
	private wgtypes.Key
	public  string
	since   time.Time
}

// openKey reads the node's private key, or makes one.
func openKey(runDir string) (nodeKey, error) {
	path := filepath.Join(runDir, keyDir, privateFile)
	k, err := readKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = writePublic(PublicKeyFile(runDir), k.public)
		}
		return k, err
	}
	if k.private, err = wgtypes.GeneratePrivateKey(); err != nil {
		return nodeKey{}, fmt.Errorf("make the node's key: %w", err)
	}
	if err := durable.Write(path, []byte(k.private.String()+"\n")); err != nil {
		return nodeKey{}, err
	}
	k.public, k.since = k.private.PublicKey().String(), time.Now()
	return k, writePublic(PublicKeyFile(runDir), k.public)
}

func readKey(path string) (nodeKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nodeKey{}, fmt.Errorf("read the node's key: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nodeKey{}, fmt.Errorf("read the node's key: %w", err)
	}
	private, err := wgtypes.ParseKey(strings.TrimSpace(string(data)))
	if err != nil {
		// Not the error itself, which may have a part of the key in it.
		return nodeKey{}, fmt.Errorf("file %s has no WireGuard key: remove it, and the agent makes another one", path)
	}
	return nodeKey{private: private, public: private.PublicKey().String(), since: info.ModTime()}, nil
}

func writePublic(path, key string) error {
	text := key + "\n"
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return nil
	}
	return durable.Write(path, []byte(text))
}
