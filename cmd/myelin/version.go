package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"myelin/status"
)

// buildVersion is what the linker set, or else the module's version, or the revision that was built.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && strings.HasPrefix(info.Main.Version, "(devel)") {
			return s.Value[:12]
		}
	}
	return info.Main.Version
}

// versions are what `myelin version` prints.
type versions struct {
	Client   clientVersion    `json:"client"`
	Agent    *agentVersion    `json:"agent,omitempty"` // nil without an agent
	Kernel   kernelVersion    `json:"kernel"`
	Features []featureVersion `json:"features,omitempty"` // of the agent
}

type clientVersion struct {
	Version   string `json:"version"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"` // "linux/amd64"
}

type agentVersion struct {
	Version string `json:"version"`
	Node    string `json:"node"`
	Ready   bool   `json:"ready"`
}

type kernelVersion struct {
	Release string `json:"release"`
	Machine string `json:"machine"`
}

type featureVersion struct {
	Name   string       `json:"name"`
	State  status.State `json:"state"`
	Chosen string       `json:"chosen"`
}

func versionCommand() *cobra.Command {
	var socket string
	var output output
	var client bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program, the agent and the kernel, and the features in use",
		Long: "Shows the version of this program, of the node's agent and of the kernel, and which features the " +
			"agent runs with. " +
			"Without an agent the exit status is 1, after what is known; --client asks no agent.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := readVersions(cmd.Context(), socket, !client)
			if output.structured() {
				if e := output.write(cmd.OutOrStdout(), v); e != nil {
					return e
				}
			} else if e := v.render(cmd.OutOrStdout()); e != nil {
				return e
			}
			return err
		},
	}
	socketFlag(cmd, &socket)
	outputFlag(cmd, &output, "")
	cmd.Flags().BoolVar(&client, "client", false, "this program and the kernel alone")
	return cmd
}

// readVersions also returns what is known when the agent does not answer.
func readVersions(ctx context.Context, socket string, agent bool) (*versions, error) {
	v := &versions{Client: clientVersion{
		Version: buildVersion(), GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return v, fmt.Errorf("read the kernel's version: %w", err)
	}
	v.Kernel = kernelVersion{unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:])}
	if !agent {
		return v, nil
	}
	report, err := fetchStatus(ctx, socket)
	if err != nil {
		return v, err
	}
	v.Agent = &agentVersion{Version: report.Version, Node: report.Node, Ready: report.ReadyMs > 0}
	for _, f := range report.Features {
		v.Features = append(v.Features, featureVersion{f.Name, f.State, f.Chosen})
	}
	return v, nil
}

func (v *versions) render(w io.Writer) error {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintf(tw, "Client:\t%s (%s, %s)\n", v.Client.Version, v.Client.GoVersion, v.Client.Platform)
	if a := v.Agent; a != nil {
		state := ""
		if !a.Ready {
			state = ", starting"
		}
		fmt.Fprintf(tw, "Agent:\t%s (node %s%s)\n", a.Version, a.Node, state)
	}
	fmt.Fprintf(tw, "Kernel:\t%s (%s)\n", v.Kernel.Release, v.Kernel.Machine)
	tw.Flush()
	if len(v.Features) > 0 {
		fmt.Fprint(&b, "\nFeatures:\n")
		for _, f := range v.Features {
			fmt.Fprintf(tw, "  %s\t%s\t%s\n", f.Name, f.State, f.Chosen)
		}
		tw.Flush()
	}
	return writeTrimmed(w, &b)
}
