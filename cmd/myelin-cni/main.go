// Command myelin-cni is the CNI plugin that a container runtime executes for
// each pod. It only talks to the node's agent; under the name loopback it is the
// plugin of that name.
package main

import (
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"

	"myelin/cni/plugin"
)

func main() {
	if filepath.Base(os.Args[0]) == plugin.LoopbackName {
		skel.PluginMainFuncs(plugin.LoopbackFuncs(), plugin.Versions(), "CNI plugin loopback, as Myelin has it")
		return
	}
	skel.PluginMainFuncs(plugin.Funcs(), plugin.Versions(), "CNI plugin of Myelin, asks the agent on this node")
}
