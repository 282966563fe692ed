package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"myelin/api"
)

// netConf is the network configuration on the plugin's standard input. Keys
// that it does not know are let pass: the specification allows runtimes and
// other plugins their own.
type netConf struct {
	types.PluginConf

	// AgentSocket is the absolute path of the agent's socket.
	AgentSocket string `json:"agentSocket"`
}

// runDir is the agent's run directory.
func (c *netConf) runDir() string { return filepath.Dir(c.AgentSocket) }

// parseNetConf refuses a configuration that is no JSON, has a known key of the
// wrong type, asks for an IPAM plugin, or a socket that is no absolute path.
func parseNetConf(data []byte) (*netConf, *types.Error) {
	var c netConf
	if err := json.Unmarshal(data, &c); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			field := strings.TrimPrefix(wrong.Field, "PluginConf.")
			return nil, types.NewError(types.ErrInvalidNetworkConfig, "wrong type in network configuration",
				fmt.Sprintf("%s: is %s, must be %s", field, wrong.Value, kind(wrong)))
		}
		return nil, types.NewError(types.ErrDecodingFailure, "network configuration is no JSON object", err.Error())
	}
	if c.IPAM.Type != "" {
		return nil, types.NewError(types.ErrUnsupportedField, "unsupported field in network configuration",
			fmt.Sprintf("ipam: {\"type\": %q}: addresses come from the node's podCIDRs, remove the key", c.IPAM.Type))
	}
	if c.AgentSocket == "" {
		c.AgentSocket = api.DefaultSocket
	}
	if !filepath.IsAbs(c.AgentSocket) || strings.ContainsRune(c.AgentSocket, 0) {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "bad value in network configuration",
			fmt.Sprintf("agentSocket: %q is no absolute path", c.AgentSocket))
	}
	return &c, nil
}

func kind(wrong *json.UnmarshalTypeError) string {
	switch k := wrong.Type.Kind().String(); k {
	case "struct", "map":
		return "object"
	case "slice":
		return "array"
	default:
		return k
	}
}

// previous returns prevResult in the latest form, nil if there is none.
func (c *netConf) previous() (*types100.Result, *types.Error) {
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult is no result", err.Error())
	}
	if c.PrevResult == nil {
		return nil, nil
	}
	result, err := types100.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "prevResult can't be converted", err.Error())
	}
	return result, nil
}

// podArgs are the keys of CNI_ARGS that a Kubernetes runtime sets; the library
// finds the fields by their names.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE types.UnmarshallableString
	K8S_POD_NAME      types.UnmarshallableString
	K8S_POD_UID       types.UnmarshallableString
}

// parseArgs reads CNI_ARGS. A key that it does not know is an error unless
// IgnoreUnknown is set among them, as the convention has it.
func parseArgs(args string) (podArgs, *types.Error) {
	var known struct {
		podArgs
		K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString
	}
	if err := types.LoadArgs(args, &known); err != nil {
		return podArgs{}, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS can't be read", err.Error())
	}
	return known.podArgs, nil
}
