package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"myelin/bench"
	"myelin/bench/results"
)

// inVM runs this same program in the VM and reads the list that it leaves in a folder shared with it.
func (s settings) inVM(ctx context.Context) ([]results.Result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	shared, err := os.MkdirTemp("", "myelin-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(shared)
	list := filepath.Join(shared, "results.json")
	cmd := exec.CommandContext(ctx, filepath.Join(s.dir, "test/vm/vm.sh"), "run", "-k", s.kernel, "--icount", "-t",
		"9000", "-m", "6G", "-w", shared, "--",
		self, "-virtual", "-mode", s.mode, "-parts", s.only, "-list", list,
		"-scenarios", s.scenarios, "-tests", s.tests, "-family", fmt.Sprint(s.family),
		"-netperf", s.netperf, fmt.Sprintf("-v=%t", s.verbose))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that vm.sh can stop its QEMU
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("measure in the VM: %w", err)
	}
	return results.Load(list)
}

func (s settings) measureVM(ctx context.Context) ([]results.Result, error) {
	measured, err := s.inVM(ctx)
	if err != nil {
		return nil, err
	}
	family := bench.Family(s.family)
	return slices.Concat(measured, bench.PolicyRatios("vm", family, measured),
		bench.FlowRatios("vm", family, measured), bench.BigTCPRatios("vm", family, measured)), nil
}

// measureEncryption measures what encrypts between nodes, in the VM.
func (s settings) measureEncryption(ctx context.Context) ([]results.Result, error) {
	measured, err := s.inVM(ctx)
	if err != nil {
		return nil, err
	}
	return append(measured, bench.EncryptionRatios(bench.Family(s.family), measured)...), nil
}

// virtualRounds: nearly all runs are alike, but now and then an agent or the lab looks at its files in the middle of
// one.
const virtualRounds = 3

func (s settings) measureInside(ctx context.Context, log *slog.Logger) error {
	if os.Getenv("IN_VM") == "" {
		return errors.New("-virtual: not in the VM of test/vm")
	}
	if err := bench.NoHugePages(); err != nil {
		return err
	}
	measure := s.measure
	if s.mode == "encryption" {
		measure = s.measureEncrypted
	}
	measured, err := measure(ctx, log, bench.Options{Way: "vm", Rounds: virtualRounds, Apart: true})
	if err != nil {
		return err
	}
	text, err := json.Marshal(measured)
	if err != nil {
		return err
	}
	return os.WriteFile(s.list, text, 0o644)
}

// partsEncryption are the ciphers, each compared with node→node through the same one.
func (s settings) partsEncryption() []part {
	var parts []part
	for _, e := range bench.Encryptions() {
		parts = append(parts, part{e.String(), func(ctx context.Context, o bench.Options) ([]results.Result, error) {
			return bench.Measure(ctx, o, e.Scenarios(binaries()))
		}})
	}
	return parts
}

func (s settings) measureEncrypted(ctx context.Context, log *slog.Logger, opts bench.Options) ([]results.Result,
	error) {
	var err error
	opts.Tests, err = choose(s.tests, bench.EncryptionTests(), func(t bench.Test) string { return t.Name })
	if err != nil {
		return nil, flagError("-tests", err)
	}
	opts.Way, opts.Charge = "encryption", true
	return s.measureParts(ctx, log, s.partsEncryption(), opts)
}
