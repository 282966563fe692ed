package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// kernels are the series that the VM ring boots: what most nodes run, and the floor.
func kernels() []string { return []string{"6.12", "5.10"} }

// job is a package's tests in a VM with a kernel.
type job struct {
	p      testPackage
	kernel string
}

// jobs are those of the VM ring, in an order by which they end together: what takes longest, the packets on the floor,
// begins.
func (r *runner) jobs() (list []job) {
	newest, floor := kernels()[0], kernels()[1]
	for _, p := range r.packages[packet] {
		list = append(list, job{p, floor})
	}
	for _, p := range r.packages[lab] {
		list = append(list, job{p, newest}, job{p, floor})
	}
	for _, p := range r.packages[packet] {
		list = append(list, job{p, newest})
	}
	return list
}

// inVM compiles the packet and lab tests once and runs each binary in a VM of each of the kernels, in its package's
// folder; two VMs at a time.
func (r *runner) inVM(ctx context.Context) error {
	bin, err := os.MkdirTemp("", "myelin-rings-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	for _, p := range slices.Concat(r.packages[packet], r.packages[lab]) {
		build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binaryOf(bin, p), p.path)
		build.Stderr = r.out
		if err := build.Run(); err != nil {
			return fmt.Errorf("compile the tests of %s: %w", p.path, err)
		}
	}
	var boots errgroup.Group
	var counting sync.Mutex
	boots.SetLimit(2)
	for _, j := range r.jobs() {
		boots.Go(func() error {
			b, err := r.boot(ctx, j.kernel, j.p, bin)
			if err != nil {
				return err
			}
			counting.Lock()
			defer counting.Unlock()
			return r.countBoot(b)
		})
	}
	return boots.Wait()
}

func binaryOf(dir string, p testPackage) string {
	return filepath.Join(dir, strings.ReplaceAll(p.path, "/", "_")+".test")
}

// boot is a binary that ran in a VM, and where its output is.
type boot struct {
	kernel string
	p      testPackage
	output string
	ended  error
	took   time.Duration
}

// ofKernel are the flags of a ring's tests in a VM: those that its kernel can change. What only the agent does is
// tested once, here. Packets one by one go through the programs, and all programs through the verifier, here and on the
// floor; what hangs on newer kernels, links and hooks, is for real traffic to show, by each way to other nodes. Of the
// test of leaks each kernel has one cipher, as agents take long to start there.
func ofKernel(ring, kernel string) []string {
	floor := kernel == kernels()[1]
	run := []string{
		"TestConnectivity/^(native|native-flows|vxlan6|legacy)$", "TestHostStack/^(native|vxlan|legacy)$",
		"TestMasquerade/^(native|legacy)$", "TestRouteMTU/^native$",
		"TestWires/^(virtio|bond|VLAN.*)$", "TestParallelAdds", "TestServicesChange", "TestSCTP",
		"TestNetkit", "TestBigTCP/^netkit$", "TestEncryption/^(native|ipsec_native)$", "TestIPsec", "TestBBR",
		"TestEncryptionLeaks/^ipsec$", "TestBandwidth/^native$", "TestBandwidthPods",
		"TestBandwidthModes/^(veth_legacy_ipsec|veth_vxlan_wireguard|netkit_native_wireguard)$", "TestBandwidthLoss",
		"TestBandwidthLatency", "TestBandwidthPriority/^native$",
	}
	if floor {
		run = []string{
			"TestConnectivity/^(native|vxlan)$", "TestHostStack/^(native|vxlan)$", "TestMasquerade/^native$",
			"TestRouteMTU/^native$", "TestSCTP/^native$", "TestEncryptionLeaks/^wireguard$",
		}
	}
	switch {
	case ring == lab:
		for i, one := range run {
			name, parts, _ := strings.Cut(one, "/")
			run[i] = strings.TrimSuffix("^"+name+"$/"+parts, "/")
		}
		return []string{"-test.run=" + strings.Join(run, "|")}
	case floor:
		return nil
	}
	return []string{"-test.skip=^(TestPackets|TestVerifierTakesEveryConfiguration|FuzzHooks)$"}
}

func (r *runner) boot(ctx context.Context, kernel string, p testPackage, dir string) (*boot, error) {
	script, err := filepath.Abs("test/vm/vm.sh")
	if err != nil {
		return nil, err
	}
	binary := binaryOf(dir, p)
	args := []string{"tool", "test2json", "-t", "-p", p.path,
		script, "run", "-k", kernel, "-t", "2760", "-m", "3G", "--nics", "--",
		"env", "MYELIN_BIN=" + os.Getenv("MYELIN_BIN"), "MYELIN_TEST_SLOW=10",
		binary, "-test.v=test2json", "-test.short", "-test.timeout=45m"}
	ring := packet
	if slices.Contains(r.packages[lab], p) {
		ring = lab
	}
	args = append(args, ofKernel(ring, kernel)...)
	output, err := os.Create(binary + "-" + kernel)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr, cmd.Stdout = p.dir, r.out, output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start VM with kernel %s: %w", kernel, err)
	}
	b := &boot{kernel: kernel, p: p, output: output.Name(), ended: cmd.Wait()}
	b.took = time.Since(begin)
	return b, nil
}

// sawEnd returns an error if the output of test2json has no last word on its package.
func sawEnd(output string) error {
	text, err := os.ReadFile(output)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var last event
	ends := []string{"pass", "fail", "skip"}
	err = json.Unmarshal([]byte(lines[len(lines)-1]), &last)
	if err != nil || last.Test != "" || !slices.Contains(ends, last.Action) {
		return errors.New("the tests were cut off")
	}
	return nil
}

// countBoot counts the tests of a VM. One that fails without a failed test is one failure.
func (r *runner) countBoot(b *boot) error {
	output, err := os.Open(b.output)
	if err != nil {
		return err
	}
	defer output.Close()
	failed := r.tally.failed
	if err := r.tally.read(output, r.out, vm+" "+b.kernel, false); err != nil {
		return err
	}
	word := "ok  "
	if b.ended == nil {
		b.ended = sawEnd(b.output) // a signal that ends test2json leaves `go tool` with status 0
	}
	if b.ended != nil && r.tally.failed == failed {
		fmt.Fprintf(r.out, "FAIL %s %s: %v\n", vm, b.kernel, b.ended)
		r.tally.failed++
	}
	if r.tally.failed > failed {
		word = "FAIL"
	}
	fmt.Fprintf(r.out, "%s %s on %s %v\n", word, b.p.path, b.kernel, b.took.Round(time.Second))
	return nil
}
