package lab

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"google.golang.org/grpc"
	"sigs.k8s.io/yaml"

	apiv1 "myelin/api/v1"
	"myelin/lab/echo"
)

// TestMain lets the test binary stand in for the programs that a lab starts: the CNI plugin, the supervisor, the echo
// server, and an agent that only announces itself.
func TestMain(m *testing.M) {
	args := strings.Join(os.Args[1:min(3, len(os.Args))], " ")
	var err error
	switch {
	case os.Getenv("CNI_COMMAND") != "":
		skel.PluginMainFuncs(skel.CNIFuncs{Add: pluginAdd, Del: pluginDel}, version.All, "lab test")
		return
	case args == "lab serve":
		err = standInServer()
	case args == "lab up":
		var opts Options
		if err = json.Unmarshal([]byte(os.Args[3]), &opts); err == nil {
			_, err = Up(context.Background(), opts)
		}
	case args == "lab supervise":
		err = standInSupervisor(os.Args[4], os.Args[6])
	case args == "agent --config":
		err = standInAgent(os.Args[3])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// standInServer serves what a lab asks `myelin lab serve` for.
func standInServer() error {
	opts := echo.Options{HTTP: []int{8080}, TCP: []int{7000}, UDP: []int{7001}, Who: os.Getenv("HOSTNAME"),
		Out: os.Stdout}
	if len(os.Args) > 4 && os.Args[3] == "--ports" {
		opts.HTTP, opts.TCP, opts.UDP = nil, nil, nil
		for p := range strings.SplitSeq(os.Args[4], ",") {
			var n int
			if _, err := fmt.Sscanf(p, "%d/TCP", &n); err != nil {
				return err
			}
			opts.HTTP = append(opts.HTTP, n)
		}
	}
	return echo.Serve(context.Background(), opts)
}

func standInSupervisor(dir, name string) error {
	l, err := Open(dir, name, nil)
	if err != nil {
		return err
	}
	return l.Supervise(context.Background())
}

// standInAgent does what a lab sees of an agent: a socket, and a CNI configuration while it runs.
func standInAgent(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config struct {
		Fail   bool
		Myelin struct{ RunDir, NodeName string }
		CNI    struct{ ConfPath string }
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return err
	}
	if config.Fail {
		return fmt.Errorf("agent of %s was told to fail", config.Myelin.NodeName)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	socket := filepath.Join(config.Myelin.RunDir, "myelin.sock")
	_ = os.Remove(socket) // of one that was killed
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	apiv1.RegisterAgentServer(server, readyAgent{})
	go func() { _ = server.Serve(l) }() // until it is stopped
	defer server.Stop()
	conflist := filepath.Join(config.CNI.ConfPath, "05-test.conflist")
	if err := os.WriteFile(conflist, []byte(testConflist), 0o644); err != nil {
		return err
	}
	<-ctx.Done()
	return os.Remove(conflist)
}

// readyAgent says that it is ready.
type readyAgent struct{ apiv1.UnimplementedAgentServer }

func (readyAgent) Status(context.Context, *apiv1.StatusRequest) (*apiv1.StatusResponse, error) {
	return &apiv1.StatusResponse{Json: []byte(`{"readyMs": 1}`)}, nil
}

const testConflist = `{"cniVersion": "1.1.0", "name": "test", "plugins": [{"type": "standin", "refuse": "no-network"}]}`

// pluginAdd makes a veth pair whose host side answers ARP for everything, and an address from the container's ID.
func pluginAdd(args *skel.CmdArgs) error {
	var conf struct {
		types.NetConf
		Refuse string `json:"refuse"`
	}
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return err
	}
	if strings.Contains(args.Args, "K8S_POD_NAME="+conf.Refuse) {
		return types.NewError(100, "refused", "the pod's name is "+conf.Refuse)
	}
	ns, err := netns.GetFromPath(args.Netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	addr, link := pluginNames(args.ContainerID)
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: link})
	veth.PeerName, veth.PeerNamespace = args.IfName, netlink.NsFd(ns)
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create %s: %w", link, err)
	}
	host := net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}
	for _, file := range []string{"ipv4/conf/" + link + "/proxy_arp", "ipv4/ip_forward"} {
		if err := os.WriteFile("/proc/sys/net/"+file, []byte("1"), 0o644); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: veth.Index, Dst: &host,
		Scope: netlink.SCOPE_LINK}); err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	eth0, err := h.LinkByName(args.IfName)
	if err != nil {
		return err
	}
	if err := h.AddrAdd(eth0, &netlink.Addr{IPNet: &host}); err != nil {
		return err
	}
	if err := h.LinkSetUp(eth0); err != nil {
		return err
	}
	all := net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: &all,
		Scope: netlink.SCOPE_LINK}); err != nil {
		return err
	}
	return types.PrintResult(&types100.Result{CNIVersion: "1.1.0", IPs: []*types100.IPConfig{{Address: host}}},
		conf.CNIVersion)
}

func pluginDel(args *skel.CmdArgs) error {
	_, name := pluginNames(args.ContainerID)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil // gone, with the pod's namespace or before
	}
	return netlink.LinkDel(link)
}

func pluginNames(containerID string) (netip.Addr, string) {
	sum := sha256.Sum256([]byte(containerID))
	return netip.AddrFrom4([4]byte{10, sum[0], sum[1], sum[2] | 1}), fmt.Sprintf("pod%x", sum[:5])
}

// testOptions is for a lab of the stand-ins, with a name of its own. The end of the test takes it down.
func testOptions(t *testing.T, manifests string) Options {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	plugin := filepath.Join(dir, "standin")
	if err := os.Symlink(self, plugin); err != nil {
		t.Fatal(err)
	}
	yamls := filepath.Join(dir, "input.yaml")
	if err := os.WriteFile(yamls, []byte(manifests), 0o644); err != nil {
		t.Fatal(err)
	}
	opts := Options{
		Name: "t" + randomHex(5), Dir: filepath.Join(dir, "labs"), Manifests: yamls,
		Binary: self, CNIPlugin: plugin, Conflist: []byte(testConflist), Timeout: 30 * time.Second,
		Grace: 500 * time.Millisecond,
	}
	t.Cleanup(func() { down(t, opts) })
	return opts
}

// up builds a lab that the end of the test removes.
func up(t *testing.T, opts Options) *Lab {
	t.Helper()
	l, err := Up(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, _ := os.ReadFile(l.path("supervisor.log")); t.Failed() && len(log) > 0 {
			t.Logf("supervisor:\n%s", log)
		}
	})
	return l
}

// down removes a lab and fails if anything of it is left.
func down(t *testing.T, opts Options) {
	t.Helper()
	if err := Down(context.Background(), opts.Dir, opts.Name, nil); err != nil {
		t.Error(err)
	}
	for _, left := range leftovers(opts) {
		t.Errorf("left behind: %s", left)
	}
}

// leftovers finds what belongs to a lab by looking where the kernel would show it, without using the lab's own code.
func leftovers(opts Options) []string {
	var left []string
	found, _ := filepath.Glob("/run/netns/" + opts.Name + "-*")
	left = append(left, found...)
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		found, _ := filepath.Glob(root + "/myelin-lab/" + opts.Name)
		left = append(left, found...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, opts.Dir) || strings.Contains(line, "/"+opts.Name+"-") {
			left = append(left, "mount "+line)
		}
	}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		cg, _ := os.ReadFile(p + "/cgroup")
		cmdline, _ := os.ReadFile(p + "/cmdline")
		if len(cmdline) == 0 {
			continue // a zombie, which its new parent has yet to reap
		}
		if strings.Contains(string(cg), "/myelin-lab/"+opts.Name+"/") || strings.Contains(string(cmdline), opts.Name) {
			left = append(left, p+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	if _, err := os.Stat(filepath.Join(opts.Dir, opts.Name)); err == nil {
		left = append(left, opts.Dir)
	}
	return left
}

// eventually repeats a check until it passes, or ten seconds are over.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = check(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}
