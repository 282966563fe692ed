package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Load reads what Save wrote; nil if there is no file.
func Load(path string) (*Assignment, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	a := new(Assignment)
	if err == nil {
		err = json.Unmarshal(data, a)
	}
	if err == nil {
		_, err = newPools(a.InForce)
	}
	if err != nil {
		return nil, fmt.Errorf("read podCIDRs in force from %s: %w", path, err)
	}
	return a, nil
}

// Save replaces the file as one step. It is where the endpoints' state files
// are, and like them not synced: both go with the pods.
func (a *Assignment) Save(path string) error {
	data, err := json.MarshalIndent(a, "", "  ")
	if err == nil {
		err = os.WriteFile(path+".tmp", append(data, '\n'), 0o600)
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		_ = os.Remove(path + ".tmp") // on a full disk, what was written of it would take room
		return fmt.Errorf("save podCIDRs in force to %s: %w", path, err)
	}
	return nil
}
