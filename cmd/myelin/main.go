// Command myelin is the network of a Kubernetes cluster in eBPF.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version string

func main() {
	root := rootCommand()
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

func rootCommand() *cobra.Command {
	root := &cobra.Command{Use: "myelin", Version: buildVersion(), SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(agentCommand(), operatorCommand(), proxyCommand(), wireguardCommand(), relayCommand(), labCommand(),
		statusCommand(), doctorCommand(), tuneCommand(), dropsCommand(), observeCommand(), flowTopCommand(),
		uiCommand(), monitorCommand(), connectivityCommand(),
		versionCommand(), configCommand(), sysdumpCommand())
	root.AddCommand(nounCommands()...)
	root.AddCommand(hostCommands()...)
	root.AddCommand(installCommands()...)
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		refuseUnknown(cmd)
	}
	return root
}

// refuseUnknown makes a command that does nothing without a verb refuse what is no verb of it. Cobra does so for the
// root alone: elsewhere it prints help, and all seems well.
func refuseUnknown(cmd *cobra.Command) {
	for _, verb := range cmd.Commands() {
		refuseUnknown(verb)
	}
	if !cmd.HasSubCommands() || cmd.Runnable() {
		return
	}
	cmd.Args, cmd.DisableFlagsInUseLine = knownVerb, true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// knownVerb is for commands with subcommands: an argument that gets here is none of them.
func knownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	// The nearest alone, and nothing that is further away than two letters.
	for cmd.SuggestionsMinimumDistance = 1; cmd.SuggestionsMinimumDistance <= 2; cmd.SuggestionsMinimumDistance++ {
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return fmt.Errorf("unknown command %q for %q: did you mean %s?", args[0], cmd.CommandPath(),
				strings.Join(near, " or "))
		}
	}
	var all []string
	for _, verb := range cmd.Commands() {
		if verb.IsAvailableCommand() {
			all = append(all, verb.Name())
		}
	}
	return fmt.Errorf("unknown command %q for %q: it has %s", args[0], cmd.CommandPath(), strings.Join(all, ", "))
}
