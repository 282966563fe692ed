package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// always is the turn of what each run of .ci/run has; the others have a third each.
const always = -1

// turns is how many runs cover everything.
const turns = 3

// piece is what .ci/run can start, or leave out.
type piece struct {
	name    string
	seconds float64  // that it takes on two idle cores, without its builds
	builds  []string // what it builds before that, unless another piece has, or this machine's cache
	turn    int
	folders []string // a change in one of them touches it
	run     func(context.Context, *runner) error
}

// Seconds on two cores with cold caches, as measured; the plan is made of them. What takes longer only leaves less time
// for what comes after it.
const (
	coreSeconds      = 600
	vetSeconds       = 120
	generateSeconds  = 60
	fuzzSeconds      = 180
	unitSeconds      = 300
	uiSeconds        = 240
	kubeSeconds      = 150
	clusterSeconds   = 720
	vmSeconds        = 2320
	labChunks        = 3
	labChunkOverhead = 15
)

// datapath has the folders of which the programs are made.
func datapath() []string {
	return strings.Fields("bpf drop endpoint event flow nat policy/policy.h policy/prefilter route service node")
}

// pieces are all that there is besides make test, in the order in which they run if there is time for all.
func (r *runner) pieces(changed []string) []piece {
	list := []piece{
		{name: "vet", seconds: vetSeconds, turn: always, run: command("go", "vet", "./...")},
		{name: "generated files", seconds: generateSeconds, turn: always, run: makes("generate-check")},
		{name: "fuzz", seconds: fuzzSeconds, turn: always, run: makes("fuzz", "FUZZ_SECONDS=3")},
	}
	var near, cliTest, rest tests
	for _, t := range r.tests.outsideCore() {
		if t.name == hubbleCLITest {
			cliTest = append(cliTest, t)
			continue
		}
		rest = append(rest, t)
		if touched(append(t.folders, labFile(t.name)), changed) {
			near = append(near, t)
		}
	}
	// Those that are touched have a piece for each four minutes, so that some of them run where there is no time for
	// all.
	if len(near) > 0 {
		for i, chunk := range near.chunks(int(near.expected()/240) + 1) {
			list = append(list, piece{
				name: fmt.Sprintf("lab, touched, part %d", i+1), seconds: chunk.expected() + labChunkOverhead,
				turn: turns, folders: []string{"*"}, run: labTests(chunk),
			})
		}
	}
	kubeFolders := strings.Fields("kube operator policy/identity cluster test/kube go.mod")
	clusterFolders := append(strings.Fields("cni install chart operator connectivity kube go.mod"),
		"test/cluster", "scripts/kubernetes.sh")
	cliFolders := strings.Fields("hubble event agent test/hubble go.mod")
	unitFolders := strings.Fields("policy test/policy service bench install/image doctor")
	uiFolders := strings.Fields("hubble/ui test/ui scripts/ui.sh hubble/query hubble/printer")
	whole := func(ctx context.Context, r *runner) error { return r.here(ctx, unit) }
	list = append(list,
		piece{
			name: "API server", seconds: kubeSeconds, builds: []string{serverBuild}, folders: kubeFolders,
			run: withServer,
		},
		piece{
			name: "cluster", seconds: clusterSeconds, builds: []string{serverBuild, clusterBuild},
			folders: clusterFolders, run: makes("test-cluster"),
		},
		piece{
			name: "Hubble CLI", seconds: cliTest.expected() + labChunkOverhead, builds: []string{cliBuild},
			turn: 2, folders: cliFolders, run: withHubbleCLI(cliTest),
		},
		piece{name: "vm", seconds: vmSeconds, turn: 1, folders: append(datapath(), "test/vm"), run: inVM},
		piece{name: "web page", seconds: uiSeconds, folders: uiFolders, run: webPage},
		piece{name: "unit, all of it", seconds: unitSeconds, turn: 2, folders: unitFolders, run: whole},
	)
	for i, chunk := range rest.chunks(labChunks) {
		list = append(list, piece{
			name: fmt.Sprintf("lab, part %d of %d", i+1, labChunks), seconds: chunk.expected() + labChunkOverhead,
			turn: 2, run: labTests(chunk),
		})
	}
	return list
}

// Builds that pieces share: of Kubernetes, and of the Hubble CLI.
const serverBuild, clusterBuild, cliBuild = "API server", "cluster", "Hubble CLI"

// hubbleCLITest is the test of the lab ring that needs cliBuild.
const hubbleCLITest = "TestHubbleCLI"

// build is something that takes long once, with the last file that it makes in the cache folder.
type build struct {
	file    string
	seconds float64
}

func builds() map[string]build {
	return map[string]build{
		serverBuild: {"kube/bin/kube-apiserver", 780}, clusterBuild: {"cluster/images/made", 720},
		cliBuild: {"hubble/hubble", 420},
	}
}

// builtHere are the builds whose files are in this machine's cache.
func builtHere() map[string]bool {
	built := map[string]bool{}
	for name, b := range builds() {
		_, err := os.Stat(filepath.Join(cacheDir(), b.file))
		built[name] = err == nil
	}
	return built
}

// cost is how long a piece takes where some builds are there.
func (p piece) cost(built map[string]bool) float64 {
	sum := p.seconds
	for _, name := range p.builds {
		if !built[name] {
			sum += builds()[name].seconds
		}
	}
	return sum
}

func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "myelin")
}

// command runs one whose exit status says whether it passed.
func command(name string, args ...string) func(context.Context, *runner) error {
	return func(ctx context.Context, r *runner) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdout, cmd.Stderr = r.out, r.out
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
		}
		return nil
	}
}

// makes runs a target of make.
func makes(args ...string) func(context.Context, *runner) error {
	return command("make", append([]string{"--no-print-directory"}, args...)...)
}

// webPage tests the page in a browser, on machines where npm finds its packages. The program does not need them.
func webPage(ctx context.Context, r *runner) error {
	if err := command("scripts/deps.sh", "ui")(ctx, r); err != nil {
		return err
	}
	asking, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	if out, err := exec.CommandContext(asking, "npm", "ping").CombinedOutput(); err != nil {
		fmt.Fprintf(r.out, "not run: the web page in a browser: npm finds no packages here: %v\n%s", err, out)
		return nil
	}
	return makes("test-ui")(ctx, r)
}

// withServer runs the tests that ask an API server, after they are built one.
func withServer(ctx context.Context, r *runner) error {
	if err := buildKube(ctx); err != nil {
		return err
	}
	args := []string{"test", "-json", "-count=1", "-timeout=20m", "./kube/...", "./operator/...", "./test/kube"}
	return r.count(kube, exec.CommandContext(ctx, "go", args...))
}

// withHubbleCLI runs tests of the lab ring after the CLI is built, so that the build isn't part of the test's time.
func withHubbleCLI(list tests) func(context.Context, *runner) error {
	return func(ctx context.Context, r *runner) error {
		if err := command("scripts/hubble.sh")(ctx, r); err != nil {
			return err
		}
		return labTests(list)(ctx, r)
	}
}

func inVM(ctx context.Context, r *runner) error {
	if err := command("scripts/deps.sh", "vm")(ctx, r); err != nil {
		return err
	}
	return r.inVM(ctx)
}

// labTests runs tests of the lab ring but for what ran in the core, or as touched by the change, before.
func labTests(chunk tests) func(context.Context, *runner) error {
	return func(ctx context.Context, r *runner) error {
		var left tests
		skip := []string{r.tests.coreLab()}
		for _, t := range chunk {
			if !contains(r.labDone, t.name) {
				left = append(left, t)
				r.labDone = append(r.labDone, t.name)
			}
		}
		if len(left) == 0 {
			return nil
		}
		return r.here(ctx, lab, "-parallel=4", "-run="+left.pattern(), "-skip="+strings.Join(skip, "|"))
	}
}

// labFile is the file of the lab ring that has a test; empty if none has.
func labFile(test string) string {
	files, _ := filepath.Glob("test/lab/*_test.go")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), "\nfunc "+test+"(") {
			return file
		}
	}
	return ""
}
