package cni

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"myelin/api"
	apiv1 "myelin/api/v1"
	"myelin/endpoint"
	"myelin/endpoint/nettest"
	"myelin/endpoint/podlink"
	"myelin/internal/table"
	"myelin/ipam"
)

const binDir = "MYELIN_TEST_CNI_PATH"

// TestMain has the real plugin for every test to execute: that of MYELIN_BIN, or it is built once.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if dir := os.Getenv("MYELIN_BIN"); dir != "" && os.Getenv(binDir) == "" {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.Setenv(binDir, absolute)
	}
	if os.Getenv(binDir) == "" {
		dir, err := os.MkdirTemp("", "myelin-cni")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build := exec.Command("go", "build", "-o", dir+"/", "myelin/cmd/myelin-cni")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the plugin: %v\n%s", err, out)
			return 1
		}
		os.Setenv(binDir, dir)
	}
	return nettest.Main(m)
}

// datapath accepts every endpoint.
type datapath struct{}

func (datapath) Update(context.Context, statedb.ReadTxn, statedb.Revision, *endpoint.Endpoint) error {
	return nil
}

func (datapath) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *endpoint.Endpoint) error {
	return nil
}

func (datapath) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*endpoint.Endpoint, statedb.Revision]) error {
	return nil
}

// node has a run directory and a runtime (libcni with the real plugin).
type node struct {
	t       *testing.T
	runDir  string
	prefix  netip.Prefix
	step    func(string) error
	problem func() *Problem
	runtime *libcni.CNIConfig
}

func newNode(t *testing.T, prefix string) *node {
	nettest.Root(t)
	dir := t.TempDir()
	return &node{
		t: t, runDir: filepath.Join(dir, "run"), prefix: netip.MustParsePrefix(prefix),
		runtime: libcni.NewCNIConfigWithCacheDir([]string{os.Getenv(binDir)}, filepath.Join(dir, "cache"), nil),
	}
}

func (n *node) socket() string { return filepath.Join(n.runDir, "myelin.sock") }

// conf is a network configuration list of one plugin with extra keys.
func (n *node) conf(version, extra string) *libcni.NetworkConfigList {
	n.t.Helper()
	text := fmt.Sprintf(`{"cniVersion":%q,"name":"myelin","plugins":[{"type":"myelin-cni","agentSocket":%q%s}]}`,
		version, n.socket(), extra)
	list, err := libcni.ConfListFromBytes([]byte(text))
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

// pod is what a runtime hands to the plugin for one pod.
func (n *node) pod(name string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: filepath.Base(filepath.Dir(filepath.Dir(n.runDir))) + "-" + name, IfName: "eth0",
		NetNS: nettest.NewNS(n.t),
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", "default"},
			{"K8S_POD_NAME", name},
			{"K8S_POD_INFRA_CONTAINER_ID", "infra"},
			{"K8S_POD_UID", "uid-" + name},
			{"SOMETHING_ELSE", "x"},
		},
	}
}

// agent is one life of an agent.
type agent struct {
	manager *endpoint.Manager
	db      *statedb.DB
	table   statedb.RWTable[*endpoint.Endpoint]
	ipam    *ipam.Allocator
	stop    func()
}

func (a *agent) rows() int { return a.table.NumObjects(a.db.ReadTxn()) }

// start begins a life. stop ends it as a crash would, for the plugin.
func (n *node) start() *agent {
	t := n.t
	t.Helper()
	a := &agent{db: statedb.New()}
	var err error
	if a.table, err = endpoint.NewTable(a.db); err != nil {
		t.Fatal(err)
	}
	if a.ipam, err = ipam.New(n.prefix); err != nil {
		t.Fatal(err)
	}
	group, start, stopGroup := table.Group(nettest.Quiet())
	if _, err := table.Register(nettest.Quiet(), a.db, group, a.table, endpoint.StatusOf, datapath{}); err != nil {
		t.Fatal(err)
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	config := endpoint.NodeConfig{IPv4: true, Gateway4: ipam.Gateway(n.prefix), MTU: 1500}
	a.manager = endpoint.NewManager(nettest.Quiet(), a.db, a.table, a.ipam,
		podlink.New(handle, podlink.Options{ProcSys: "/proc/sys", SlowPath: true}),
		endpoint.Config{RunDir: n.runDir, Node: func() endpoint.NodeConfig { return config }, Step: n.step})
	if err := errors.Join(a.db.Start(), start(context.Background()), a.manager.Restore(t.Context())); err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	apiv1.RegisterCNIServer(server, NewServer(nettest.Quiet(), a.manager, n.problem))
	a.stop = sync.OnceFunc(func() {
		server.Stop()
		a.manager.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(stopGroup(ctx), a.db.Stop(), handle.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(a.stop)
	opened, err := ReplayDeletes(t.Context(), nettest.Quiet(), n.runDir, a.manager, func() error {
		listener, err := api.Listen(n.socket())
		if err == nil {
			go server.Serve(listener)
		}
		return err
	})
	if err != nil || !opened {
		t.Fatal(opened, err)
	}
	return a
}

func (n *node) add(list *libcni.NetworkConfigList, pod *libcni.RuntimeConf) (types.Result, error) {
	return n.runtime.AddNetworkList(n.t.Context(), list, pod)
}

func (n *node) del(list *libcni.NetworkConfigList, pod *libcni.RuntimeConf) error {
	return n.runtime.DelNetworkList(n.t.Context(), list, pod)
}

// empty fails the test if the agent or the run directory holds anything, and goes on holding it: DEL is answered
// before the link is gone.
func (n *node) empty(a *agent) {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); a.rows()+int(a.ipam.Dump()[0].InUse) > 0 && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
	}
	if rows, used := a.rows(), a.ipam.Dump()[0].InUse; rows != 0 || used != 0 {
		n.t.Errorf("%d rows, %d addresses left", rows, used)
	}
	for _, dir := range []string{"endpoints", "cni-deletes"} {
		files, err := filepath.Glob(filepath.Join(n.runDir, dir, "*.*"))
		if err != nil || len(files) != 0 {
			n.t.Errorf("left: %v %v", files, err)
		}
	}
}

// wantError fails the test unless err is a CNI error of this code with this in
// its details.
func wantError(t *testing.T, err error, code uint, details string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Errorf("got %v (%T), want CNI error %d", err, err, code)
		return
	}
	if e.Code != code || e.Msg == "" || !contains(e.Details, details) {
		t.Errorf("got code %d, msg %q, details %q; want code %d and %q in details", e.Code, e.Msg, e.Details, code,
			details)
	}
}
