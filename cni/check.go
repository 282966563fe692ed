package cni

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"myelin/doctor/check"
)

// Checks are the doctor's checks of what the container runtime calls.
func Checks() []check.Check { return []check.Check{{Area: "cni", Run: checkFiles}} }

// checkFiles looks for what a container runtime would take instead of our plugin.
func checkFiles(m *check.Machine) {
	dir := m.Config.CNI.ConfPath
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.Warn("CNI configurations can't be listed: "+err.Error(), "", "")
	}
	written := false
	for _, e := range entries {
		name := e.Name()
		switch {
		case name == ConflistName:
			written = true
		case !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)):
		case name < ConflistName:
			m.Fail(filepath.Join(dir, name)+" comes before "+ConflistName,
				"the runtime takes the first file by name: pods get another network", "remove it, or rename it")
		default:
			m.Info(filepath.Join(dir, name)+" is another network's configuration",
				"it comes into force if ours is removed", "remove it")
		}
	}
	switch {
	case written:
		m.OK("%s is written", filepath.Join(dir, ConflistName))
	case m.Agent:
		m.Fail(ConflistName+" is not in "+dir, "the runtime makes no pods with our network",
			"restart the agent, which writes it when it is ready")
	default:
		m.Info(ConflistName+" is not in "+dir, "the node is not ready for pods",
			"the agent writes it when it is ready")
	}
	plugin := filepath.Join(m.Config.CNI.BinPath, PluginName)
	switch info, err := os.Stat(plugin); {
	case err != nil:
		m.Warn("the plugin is not installed: "+err.Error(), "the runtime can't call it",
			"copy "+PluginName+" to "+m.Config.CNI.BinPath)
	case info.Mode()&0o111 == 0:
		m.Fail(plugin+" is not executable", "the runtime can't call it", "chmod +x "+plugin)
	default:
		m.OK("%s is installed", plugin)
	}
}
