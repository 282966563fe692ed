package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"myelin/agent"
)

// runRoot is one run of the program up to its exit.
func runRoot(args ...string) (out string, err error) {
	var b bytes.Buffer
	root := rootCommand()
	root.SetOut(&b)
	root.SetErr(&b)
	root.SetArgs(args)
	err = root.ExecuteContext(context.Background())
	return b.String(), err
}

// TestUnknownVerb: each command that needs a verb names the word that is none, and the nearest that is one; without any
// word it explains itself.
func TestUnknownVerb(t *testing.T) {
	var seen int
	var walk func(noun *cobra.Command)
	walk = func(noun *cobra.Command) {
		for _, verb := range noun.Commands() {
			walk(verb)
		}
		if !noun.HasSubCommands() {
			return
		}
		seen++
		path := strings.Fields(noun.CommandPath())[1:]
		t.Run(strings.Join(path, " "), func(t *testing.T) { testVerbs(t, noun, path) })
	}
	for _, cmd := range rootCommand().Commands() {
		walk(cmd)
	}
	if least := len(agent.Commands()) + 1; seen < least { // and lab
		t.Errorf("%d nouns, at least %d are there", seen, least)
	}
	if _, err := runRoot("ruote"); err == nil || !strings.Contains(err.Error(), "route") {
		t.Errorf("ruote: %v", err)
	}
}

func testVerbs(t *testing.T, noun *cobra.Command, path []string) {
	if name := noun.Name(); name != "proxy" && name != "wireguard" { // which are commands themselves
		out, err := runRoot(path...)
		if err != nil || !strings.Contains(out, "Available Commands:") {
			t.Errorf("without a verb: %v, %q", err, out)
		}
	}
	for _, verb := range noun.Commands() {
		if !verb.IsAvailableCommand() {
			continue
		}
		name := verb.Name()
		slip := name + "x"
		if len(name) > 2 && name[1] != name[2] {
			slip = name[:1] + name[2:3] + name[1:2] + name[3:] // lsit
		}
		const far = "xyzzyxyzzy" // near to nothing: all are named
		for wrong, args := range map[string][]string{slip: {slip, "--help=false", name}, far: {far}} {
			out, err := runRoot(slices.Concat(path, args)...)
			if err == nil || out != "" {
				t.Fatalf("%s: %v, %q; want an error alone", args, err, out)
			}
			if text := err.Error(); !strings.Contains(text, `"`+wrong+`"`) || !strings.Contains(text, " "+name) {
				t.Errorf("%s: %v; want %s and %s", args, err, wrong, name)
			}
		}
	}
}

// walk calls do for each command that does something, with its path and whether it has -o.
func walk(cmd *cobra.Command, do func(path []string, output bool)) {
	for _, c := range cmd.Commands() {
		walk(c, do)
		if c.IsAvailableCommand() && !c.HasSubCommands() && c.Runnable() {
			flag := c.Flag("output")
			do(strings.Fields(c.CommandPath())[1:], flag != nil && flag.Shorthand == "o")
		}
	}
}
