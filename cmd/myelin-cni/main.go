// Command myelin-cni is the CNI plugin that a container runtime executes for
// each pod. It only talks to the node's agent.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"

	"myelin/cni/plugin"
)

func main() {
	skel.PluginMainFuncs(plugin.Funcs(), plugin.Versions(), "CNI plugin of Myelin, asks the agent on this node")
}
