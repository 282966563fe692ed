// Command hubble is the real Hubble CLI, built from its Go module for tests.
package main

import (
	"fmt"
	"os"

	"github.com/cilium/cilium/hubble/cmd"
)

func main() {
	if err := cmd.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
