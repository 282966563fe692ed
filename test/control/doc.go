// Package control has tests of the control plane alone, as scripts: YAML goes in, and the text of tables and BPF maps
// comes out, as the command line prints it. See README.md.
package control
