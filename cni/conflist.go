package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"myelin/cni/plugin"
)

// ConflistName is the file that a runtime reads before others: they take the
// first one in lexical order.
const ConflistName = "05-myelin.conflist"

// PluginName is the file name of the plugin's binary.
const PluginName = "myelin-cni"

// conflist is a network configuration list, CNI specification 1.1.0 section 1.
type conflist struct {
	// CNIVersion is for runtimes that don't know cniVersions, which came with
	// 1.1.0; they would refuse 1.1.0 itself.
	CNIVersion  string         `json:"cniVersion"`
	CNIVersions []string       `json:"cniVersions"`
	Name        string         `json:"name"`
	Plugins     []conflistItem `json:"plugins"`
}

type conflistItem struct {
	Type        string `json:"type"`
	AgentSocket string `json:"agentSocket"`
}

// WriteConflist tells the runtime that watches dir ("/etc/cni/net.d") to use
// the plugin with the agent behind socket. It replaces the file as one step,
// and makes the node ready: call it when the agent is.
func WriteConflist(dir, socket string) error {
	list := conflist{
		CNIVersion:  "1.0.0",
		CNIVersions: plugin.Versions().SupportedVersions(),
		Name:        "myelin",
		Plugins:     []conflistItem{{Type: PluginName, AgentSocket: socket}},
	}
	path := filepath.Join(dir, ConflistName)
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	// The name does not end in .conflist, so no runtime reads it.
	tmp := filepath.Join(dir, "."+ConflistName+".tmp")
	if err := os.WriteFile(tmp, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// RemoveConflist takes the configuration away; none is no error.
func RemoveConflist(dir string) error {
	path := filepath.Join(dir, ConflistName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}
