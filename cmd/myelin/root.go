package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// needsRoot refuses, for any user but root, a command that could do nothing or would show only a part of what there is.
func needsRoot(what string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if os.Geteuid() == 0 {
			return nil
		}
		return fmt.Errorf("%s needs root, for %s", cmd.CommandPath(), what)
	}
}
