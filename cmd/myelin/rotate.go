package main

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"myelin/encryption"
)

// encryptVerbs change encryption.
func encryptVerbs(*listFlags) []*cobra.Command {
	var runDir string
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Give this node another WireGuard key",
		Long: "Makes a key that the agent changes to within seconds, without lost packets: other nodes learn it and " +
			"make sessions with it by a second device before it replaces the one of before. If another node rotates " +
			"its key, the agent waits for that. `myelin encrypt device` shows the keys in use.",
		Args:    cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, args []string) error { return needsRoot("the node's key")(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := net.InterfaceByName(encryption.DeviceName); err != nil {
				return fmt.Errorf("this node does not encrypt by WireGuard: device %s: %w", encryption.DeviceName, err)
			}
			if err := encryption.Rotate(runDir); err != nil {
				return err
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "the agent changes the node's key")
			return err
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", "/run/myelin", "the agent's run directory (myelin.runDir)")
	return []*cobra.Command{cmd}
}
