// Command rings runs the tests, ring by ring, and ends with one line that sums them up: "N passed, N failed".
//
//	go run ./test/rings [packet] [lab] [kube] [unit] [vm] [cluster]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// The rings. vm runs packet and lab again on the kernels below; cluster needs one that is up, and runs where it is asked for by name. kube is none: it
// lets the rings after it have an API server, which it builds, or waits for, if somebody else does.
const (
	unit, packet, lab, vm, cluster, kube = "unit", "packet", "lab", "vm", "cluster", "kube"
)

// kernels are the series that the VM ring boots: what most nodes run, and the floor.
func kernels() []string { return []string{"6.12", "5.10"} }

// patterns are the packages of a ring; unit has what the others have not.
func patterns(ring string) []string {
	switch ring {
	case packet:
		return []string{"./bpf/...", "./service/sockdiag"}
	case lab:
		return []string{"./test/lab/..."}
	case cluster:
		return []string{"./test/cluster"}
	}
	return []string{"./..."}
}

// runner runs commands and counts the tests in their output.
type runner struct {
	out   io.Writer
	tally tally
	// packages with tests, by ring
	packages map[string][]testPackage
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	rings := os.Args[1:]
	all := []string{unit, packet, lab, vm}
	if len(rings) == 0 {
		rings = all
	}
	r := runner{out: os.Stdout, tally: newTally()}
	err := r.run(ctx, rings)
	if err != nil {
		fmt.Println("rings:", err)
		r.tally.failed++
	}
	if ctx.Err() == nil && !slices.ContainsFunc(all, func(ring string) bool { return !slices.Contains(rings, ring) }) {
		r.tally.failNeverRun(r.out)
	}
	stop()
	fmt.Println(r.tally.summary())
	if r.tally.failed > 0 {
		os.Exit(1)
	}
}

func (r *runner) run(ctx context.Context, rings []string) error {
	err := r.list(ctx)
	if err != nil {
		return err
	}
	for i, ring := range rings {
		begin := time.Now()
		fmt.Fprintf(r.out, "── ring %s (%d of %d)\n", ring, i+1, len(rings))
		switch ring {
		case unit, packet, lab, cluster:
			err = r.here(ctx, ring)
		case vm:
			err = r.inVM(ctx)
		case kube:
			err = buildKube(ctx)
		default:
			err = fmt.Errorf("no ring %q: packet, lab, kube, unit, vm or cluster", ring)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(r.out, "── ring %s done in %v; so far %s, %d skipped\n", ring, time.Since(begin).Round(time.Second), r.tally.summary(), r.tally.skipped)
		fmt.Fprint(r.out, r.tally.slowest())
	}
	return nil
}

// buildKube tells the tests after it where an API server is.
func buildKube(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "test/kube/build.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("build an API server: %w", err)
	}
	return os.Setenv("MYELIN_KUBE_BIN", strings.TrimSpace(string(out)))
}

// list finds the packages that have tests and gives each to one ring.
func (r *runner) list(ctx context.Context) error {
	r.packages = map[string][]testPackage{}
	var taken []testPackage
	for _, ring := range []string{packet, lab, cluster, unit} {
		found, err := listPackages(ctx, patterns(ring))
		if err != nil {
			return err
		}
		found = slices.DeleteFunc(found, func(p testPackage) bool { return slices.Contains(taken, p) })
		taken = append(taken, found...)
		r.packages[ring] = found
	}
	return nil
}

// testPackage is a package that has tests.
type testPackage struct{ path, dir string }

func listPackages(ctx context.Context, patterns []string) ([]testPackage, error) {
	format := "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", format}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages of %s: %w", strings.Join(patterns, " "), err)
	}
	var found []testPackage
	for line := range strings.Lines(string(out)) {
		if path, dir, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found = append(found, testPackage{path, dir})
		}
	}
	return found, nil
}

// here runs a ring on this machine's kernel.
func (r *runner) here(ctx context.Context, ring string) error {
	if len(r.packages[ring]) == 0 {
		return fmt.Errorf("ring %s has no tests", ring)
	}
	args := []string{"test", "-json", "-count=1", "-timeout=20m", "-p=2"}
	for _, p := range r.packages[ring] {
		args = append(args, p.path)
	}
	return r.count(ring, exec.CommandContext(ctx, "go", args...))
}

// job is a package's tests in a VM with a kernel.
type job struct {
	p      testPackage
	kernel string
}

// jobs are those of the VM ring, in an order by which they end together: what takes longest, the packets on the floor, begins.
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

// inVM compiles the packet and lab tests once and runs each binary in a VM of each kernel, in its package's folder; two VMs at a time.
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

// ofKernel are the flags of a ring's tests in a VM: those that its kernel can change. What only the agent does is tested once, here. Packets one by one
// go through the programs, and all programs through the verifier, here and on the floor; what hangs on newer kernels, links and hooks, is for real traffic to
// show, by each way to other nodes.
func ofKernel(ring, kernel string) []string {
	floor := kernel == kernels()[1]
	run := []string{
		"TestConnectivity/^(native|native-flows|vxlan6|legacy)$", "TestHostStack/^(native|vxlan|legacy)$", "TestMasquerade/^(native|legacy)$", "TestRouteMTU/^native$",
		"TestWires/^(virtio|bond|VLAN)$", "TestParallelAdds", "TestServicesChange", "TestSCTP",
	}
	if floor {
		run = []string{"TestConnectivity/^(native|vxlan)$", "TestHostStack/^(native|vxlan)$", "TestMasquerade/^native$", "TestRouteMTU/^native$", "TestSCTP/^native$"}
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
		script, "run", "-k", kernel, "-t", "2160", "-m", "3G", "--nics", "--",
		"env", "MYELIN_BIN=" + os.Getenv("MYELIN_BIN"), "MYELIN_TEST_SLOW=10", binary, "-test.v=test2json", "-test.short", "-test.timeout=35m"}
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
	if json.Unmarshal([]byte(lines[len(lines)-1]), &last) != nil || last.Test != "" || !slices.Contains([]string{"pass", "fail", "skip"}, last.Action) {
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

// count runs a command whose output is test2json's. A command that fails without a failed test is one failure.
func (r *runner) count(ring string, cmd *exec.Cmd) error {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stderr = r.out
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	failed := r.tally.failed
	readErr := r.tally.read(pipe, r.out, ring, true)
	if err := cmd.Wait(); err != nil && r.tally.failed == failed {
		fmt.Fprintf(r.out, "FAIL %s: %v\n", ring, err)
		r.tally.failed++
	}
	return readErr
}
