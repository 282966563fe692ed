package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"myelin/test/kube/apiserver"
)

// insideEnv says that the test runs in namespaces of its own.
const insideEnv = "MYELIN_KUBE_INSIDE"

// inside reports whether the test runs in network and mount namespaces of its
// own. If not, it runs it there, and skips it where it can't.
func inside(t *testing.T) bool {
	t.Helper()
	if os.Getenv(apiserver.BinEnv) == "" {
		t.Skipf("%s is not set: $(test/kube/build.sh) makes what it is to name", apiserver.BinEnv)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, for namespaces")
	}
	if os.Getenv(insideEnv) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "--mount", "--kill-child", os.Args[0], "-test.v",
		"-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("inside of namespaces: %v\n%s", err, out)
	}
	for _, line := range regexp.MustCompile(`(?m)^.*measured: .*$`).FindAllString(string(out), -1) {
		t.Log(strings.TrimSpace(line))
	}
	return false
}

// node is an agent, its server, and what they need.
type node struct {
	*testing.T

	dir, bin string
	server   *apiserver.Server
	agent    *exec.Cmd
	log      *apiserver.Log
	began    time.Time
}

// newNode makes all that an agent needs, the agent excepted, with more in its
// configuration file.
func newNode(t *testing.T, more string) *node {
	t.Helper()
	n := &node{T: t, dir: t.TempDir(), bin: os.Getenv("MYELIN_BIN"), log: &apiserver.Log{}}
	if n.bin == "" {
		n.bin = filepath.Join("..", "..", "bin")
	}
	for _, dir := range []string{"bpf", "cni"} {
		if err := os.Mkdir(n.file(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(n.file("bpf"), syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	cgroup := ownGroup(t)
	for _, args := range [][]string{
		{"mount", "-t", "bpf", "bpf", n.file("bpf")},
		{"ip", "link", "set", "lo", "up"},
		{"ip", "link", "add", "eth0", "type", "veth", "peer", "name", "peer"},
		{"ip", "link", "set", "peer", "up"},
		{"ip", "link", "set", "eth0", "up"},
		{"ip", "addr", "add", "172.16.0.1/16", "dev", "eth0"},
		{"ip", "-6", "addr", "add", "2001:db8::1/64", "dev", "eth0", "nodad"},
		{"ip", "route", "add", "default", "via", "172.16.255.254"},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	config := fmt.Sprintf("ipv6.enabled: true\nautoDirectNodeRoutes: true\nkubeProxyReplacement: true\ncni: "+
		"{confPath: %[1]s/cni, binPath: %[1]s/cni}\n"+
		"myelin: {runDir: %[1]s/run, bpfRoot: %[1]s/bpf, cgroupRoot: %[2]s}\nhealthPort: 9879\n%[3]s", n.dir,
		cgroup, more)
	if err := os.WriteFile(n.file("agent.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	n.server = apiserver.Start(t)
	n.server.Grant(apiserver.Agent, "../../kube/role.yaml")
	n.server.Grant(apiserver.Agent, "../../kube/secrets-role.yaml")
	t.Cleanup(n.kill)
	return n
}

// ownGroup makes a control group for the sockets' hooks. It is where the machine
// has the hierarchy, and never mounted into a folder that is removed with all that is
// in it.
func ownGroup(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(`(?m)^\S+ (\S+) cgroup2 `).FindStringSubmatch(string(mounts))
	if at == nil {
		t.Fatal("no cgroup2 is mounted")
	}
	group := filepath.Join(at[1], fmt.Sprintf("myelin-kube-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Errorf("remove the control group: %v", err)
		}
	})
	return group
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

// launch starts an agent.
func (n *node) launch() {
	n.Helper()
	n.began = time.Now()
	// The address is in the place of the file's, the name is the environment's.
	n.agent = exec.CommandContext(context.Background(), filepath.Join(n.bin, "myelin"), "agent", "--config",
		n.file("agent.yaml"), "--kubeconfig", n.server.KubeConfig(apiserver.Agent))
	n.agent.Env = append(os.Environ(), "K8S_NODE_NAME=node1")
	n.agent.Stdout, n.agent.Stderr = n.log, n.log
	if err := n.agent.Start(); err != nil {
		n.Fatal(err)
	}
}

// start starts an agent and waits until it is ready.
func (n *node) start() {
	n.Helper()
	n.launch()
	n.ready()
	n.Logf("measured: ready %s after its start", time.Since(n.began).Round(time.Millisecond))
}

// kill ends the agent by SIGKILL.
func (n *node) kill() {
	if n.agent != nil {
		_ = n.agent.Process.Signal(syscall.SIGKILL) // it may have ended
		_ = n.agent.Wait()
		n.agent = nil
	}
}

// patience is how long what should happen may take.
const patience = 90 * time.Second

// ready waits for an agent that is.
func (n *node) ready() {
	n.Helper()
	n.says("ready ")
}

// says waits until the status has all of some texts.
func (n *node) says(texts ...string) {
	n.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		out, err := n.ask("status")
		missing := ""
		for _, text := range texts {
			if !strings.Contains(out, text) {
				missing = text
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			n.Fatalf("the status has no %q after %s: %v\n%s\n%s", missing, patience, err, out, n.log)
		}
	}
}

// refusesToStart: an agent with the configuration file alone ends with an error.
func (n *node) refusesToStart(want string) {
	n.Helper()
	out, err := exec.CommandContext(n.Context(), filepath.Join(n.bin, "myelin"), "agent", "--config",
		n.file("agent.yaml")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), want) {
		n.Errorf("without a source: %v\n%s\nwant %q", err, out, want)
	}
}

// fetch is what a server of this node answers.
func fetch(t *testing.T, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// measures looks for lines of the metrics.
func (n *node) measures(lines ...string) {
	n.Helper()
	body := fetch(n.T, "http://127.0.0.1:9879/metrics")
	for _, line := range lines {
		if !strings.Contains(string(body), "\n"+line+"\n") {
			n.Errorf("metrics have no %q: %q", line,
				regexp.MustCompile(`(?m)^myelin_kubernetes.*$`).FindAllString(string(body), -1))
		}
	}
}

func (n *node) services() string {
	n.Helper()
	out, err := n.ask("service", "list")
	if err != nil {
		n.Fatalf("list Services: %v\n%s", err, out)
	}
	return out
}

func (n *node) ask(args ...string) (string, error) {
	cmd := exec.CommandContext(n.Context(), filepath.Join(n.bin, "myelin"), append(args, "--run-dir", n.file("run"))...)
	out, err := cmd.CombinedOutput()
	return strings.Join(strings.Fields(string(out)), " "), err
}

// frontends counts what the kernel has, with or without an agent.
func (n *node) frontends() (count int) {
	n.Helper()
	m, err := ebpf.LoadPinnedMap(n.file("bpf/myelin/maps/frontends"), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		n.Fatal(err)
	}
	defer m.Close()
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	for rows := m.Iterate(); rows.Next(&key, &value); {
		count++
	}
	return count
}

// memory is what the kernel says of the agent's, in kB: VmRSS is what it has, VmHWM
// the most that it had.
func (n *node) memory(field string) (kb int) {
	n.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.agent.Process.Pid))
	if err != nil {
		n.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), field+":")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		n.Fatal(err)
	}
	return kb
}
