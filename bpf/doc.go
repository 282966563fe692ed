// Package bpf holds the datapath: one C translation unit, compiled ahead of time, and the Go code that loads, pins and
// attaches it.
package bpf

//go:generate sh generate.sh
