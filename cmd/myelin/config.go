package main

import (
	"io"
	"slices"

	"github.com/spf13/cobra"

	apiv1 "myelin/api/v1"
	"myelin/config"
)

// configCommand is `myelin config`.
func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Inspect the agent's configuration"}
	cmd.AddCommand((&configFlags{}).view())
	return cmd
}

type configFlags struct {
	socket, file string
	output       output
	changed      bool
}

func (f *configFlags) view() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "view [KEY...]",
		Short: "Show each key with its effective value and its source",
		Long: "Shows the effective values that the node's agent runs with: each key with its value and its source, " +
			"which " +
			"is a file, a flag, " +
			"an environment variable, default, or derived, where the value follows from other keys. With --config it " +
			"shows " +
			"what an agent would make of a file, and asks none.",
		Example: "  myelin config view --changed\n  myelin config view routingMode -o jsonpath='{[0].value}'",
		RunE:    func(cmd *cobra.Command, keys []string) error { return f.run(cmd, keys) },
	}
	cmd.ValidArgsFunction = func(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
		var keys []string
		for _, s := range config.Default().Explain() {
			if !slices.Contains(given, s.Key) {
				keys = append(keys, s.Key)
			}
		}
		return keys, cobra.ShellCompDirectiveNoFileComp
	}
	socketFlag(cmd, &f.socket)
	outputFlag(cmd, &f.output, "; wide has the defaults, too")
	cmd.Flags().StringVar(&f.file, "config", "", "a configuration file, instead of the agent")
	cmd.Flags().BoolVar(&f.changed, "changed", false, "only keys whose value is not the default")
	return cmd
}

func (f *configFlags) run(cmd *cobra.Command, keys []string) error {
	settings, err := f.settings(cmd)
	if err != nil {
		return err
	}
	if settings, err = config.Select(settings, keys); err != nil {
		return err
	}
	if f.changed {
		settings = slices.DeleteFunc(settings, func(s config.Setting) bool { return s.Value == s.Default })
	}
	if f.output.structured() {
		return f.output.write(cmd.OutOrStdout(), settings)
	}
	return writeSettings(cmd.OutOrStdout(), settings, f.output.wide())
}

func (f *configFlags) settings(cmd *cobra.Command) ([]config.Setting, error) {
	if f.file == "" {
		report, err := fetchStatus(cmd.Context(), f.socket)
		if err != nil {
			return nil, err
		}
		return report.Settings, nil
	}
	c, err := config.Load(f.file)
	if err != nil {
		return nil, err
	}
	return c.Explain(), nil
}

func writeSettings(w io.Writer, settings []config.Setting, wide bool) error {
	t := &apiv1.ListResponse{Columns: []string{"Key", "Value", "Source"}}
	if wide {
		t.Columns = append(t.Columns, "Default")
	}
	for _, s := range settings {
		row := &apiv1.ListRow{Cells: []string{s.Key, s.Value, s.Source}}
		if wide {
			row.Cells = append(row.Cells, s.Default)
		}
		t.Rows = append(t.Rows, row)
	}
	return writeTable(w, t)
}
