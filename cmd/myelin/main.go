// Command myelin is the network of a Kubernetes cluster in eBPF.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version string

func main() {
	root := &cobra.Command{Use: "myelin", Version: version, SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(agentCommand(), labCommand(), statusCommand(), doctorCommand(), dropsCommand(), monitorCommand())
	root.AddCommand(nounCommands()...)
	err := root.ExecuteContext(context.Background())
	var status exitStatus
	switch {
	case errors.As(err, &status):
		os.Exit(int(status))
	case err != nil:
		fmt.Fprintln(os.Stderr, "myelin:", err)
		os.Exit(1)
	}
}
