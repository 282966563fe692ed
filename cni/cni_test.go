package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"myelin/endpoint/nettest"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// TestVersions takes a pod through its life in each version of the
// specification.
func TestVersions(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a := n.start()
	for _, v := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(v, func(t *testing.T) {
			list, pod := n.conf(v, `,"unknownKey":{"is":["tolerated"]}`), n.pod("web"+v)
			result, err := n.add(list, pod)
			if err != nil {
				t.Fatal(err)
			}
			if result.Version() != v {
				t.Errorf("result has version %s", result.Version())
			}
			checkResult(t, result, pod, v)
			if v != "0.3.1" {
				if err := n.runtime.CheckNetworkList(t.Context(), list, pod); err != nil {
					t.Error("CHECK:", err)
				}
			}
			nettest.RemoveNS(t, pod.NetNS)
			for range 2 {
				if err := n.del(list, pod); err != nil {
					t.Error("DEL without the namespace:", err)
				}
			}
			n.empty(a)
		})
	}
}

func checkResult(t *testing.T, result types.Result, pod *libcni.RuntimeConf, version string) {
	t.Helper()
	r, err := types100.NewResultFromResult(result)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Interfaces) != 2 || len(r.IPs) != 1 || len(r.Routes) != 1 {
		t.Fatalf("result %+v", r)
	}
	host, inner, ip := r.Interfaces[0], r.Interfaces[1], r.IPs[0]
	if !strings.HasPrefix(host.Name, "mye") || host.Sandbox != "" || inner.Name != "eth0" ||
		inner.Sandbox != pod.NetNS || inner.Mac == "" {
		t.Errorf("interfaces %+v, %+v", host, inner)
	}
	if version == "1.1.0" && inner.Mtu != 1500 {
		t.Errorf("MTU %d", inner.Mtu)
	}
	ones, _ := ip.Address.Mask.Size()
	if ip.Interface == nil || *ip.Interface != 1 || ones != 32 || ip.Gateway.String() != "10.0.0.1" ||
		r.Routes[0].String() == "" || r.Routes[0].Dst.String() != "0.0.0.0/0" {
		t.Errorf("address %+v, route %+v", ip, r.Routes[0])
	}
}

// TestIdentity: what CNI_ARGS say is in the row.
func TestIdentity(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a := n.start()
	pod := n.pod("web")
	if _, err := n.add(n.conf("1.1.0", ""), pod); err != nil {
		t.Fatal(err)
	}
	for e := range a.table.All(a.db.ReadTxn()) {
		if e.PodName() != "default/web" || e.PodUID != "uid-web" || e.ContainerID != pod.ContainerID ||
			e.NetNS != pod.NetNS {
			t.Errorf("row %+v", e)
		}
	}
}

// TestConcurrent starts a hundred plugins at once, real processes all of them.
func TestConcurrent(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a := n.start()
	list := n.conf("1.1.0", "")
	pods := make([]*libcni.RuntimeConf, 100)
	for i := range pods {
		pods[i] = n.pod(fmt.Sprint("pod", i))
	}
	all := func(do func(*libcni.RuntimeConf) error) {
		var wg sync.WaitGroup
		begin := time.Now()
		for _, p := range pods {
			wg.Go(func() {
				if err := do(p); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		t.Logf("%d at once took %v", len(pods), time.Since(begin))
	}
	all(func(p *libcni.RuntimeConf) error { _, err := n.add(list, p); return err })
	if a.rows() != len(pods) || a.ipam.Dump()[0].InUse != uint64(len(pods)) {
		t.Errorf("%d rows, %d addresses", a.rows(), a.ipam.Dump()[0].InUse)
	}
	all(func(p *libcni.RuntimeConf) error { return n.del(list, p) })
	n.empty(a)

	var took []time.Duration
	for _, p := range pods[:30] {
		begin := time.Now()
		if _, err := n.add(list, p); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("ADD one by one, libcni and exec included: median %v, worst %v", took[len(took)/2], took[len(took)-1])
}

// TestRefusals has a CNI error for each thing that may be wrong.
func TestRefusals(t *testing.T) {
	n := newNode(t, "10.0.0.0/30")
	a := n.start()
	good := n.conf("1.1.0", "")
	pod, other := n.pod("web"), n.pod("other")
	for _, tt := range []struct {
		extra   string
		code    uint
		details string
	}{
		{`,"ipam":{"type":"host-local"}`, types.ErrUnsupportedField, `ipam: {"type": "host-local"}`},
		{`,"agentSocket":7`, types.ErrInvalidNetworkConfig, "agentSocket: is number, must be string"},
		{`,"agentSocket":"myelin.sock"`, types.ErrInvalidNetworkConfig,
			`agentSocket: "myelin.sock" is no absolute path`},
		{`,"prevResult":{"cniVersion":"1.1.0"}`, types.ErrInvalidNetworkConfig, "prevResult"},
	} {
		_, err := n.add(n.conf("1.1.0", tt.extra), pod)
		wantError(t, err, tt.code, tt.details)
	}
	half, unknown, own := *pod, *pod, *pod
	half.Args = [][2]string{{"K8S_POD_NAME", "web"}}
	unknown.Args = [][2]string{{"SOMETHING", "x"}}
	own.NetNS = "/proc/self/ns/net"
	for _, tt := range []struct {
		pod     *libcni.RuntimeConf
		code    uint
		details string
	}{
		{&half, types.ErrInvalidEnvironmentVariables, `K8S_POD_NAMESPACE="", K8S_POD_NAME="web"`},
		{&unknown, types.ErrInvalidEnvironmentVariables, "SOMETHING=x"},
		{&own, types.ErrInvalidNetNS, "host's own"},
	} {
		_, err := n.add(good, tt.pod)
		wantError(t, err, tt.code, tt.details)
	}
	n.empty(a)

	if _, err := n.add(good, pod); err != nil {
		t.Fatal(err)
	}
	_, err := n.add(good, pod)
	wantError(t, err, codeExists, "(ready)")
	_, err = n.add(good, other)
	wantError(t, err, codeExhausted, "podCIDR 10.0.0.0/30: all 1 addresses in use")
	if err := n.del(good, pod); err != nil {
		t.Fatal(err)
	}
	n.empty(a)
}

func TestCheck(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a := n.start()
	pod := n.pod("web")
	list := n.conf("1.1.0", "")
	result, err := n.add(list, pod)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	// CHECK of a single plugin takes prevResult from the configuration.
	check := func(previous string, p *libcni.RuntimeConf) error {
		extra := ""
		if previous != "" {
			extra = `,"cniVersion":"1.1.0","name":"myelin","prevResult":` + previous
		}
		l := n.conf("1.1.0", extra)
		os.RemoveAll(filepath.Join(filepath.Dir(n.runDir), "cache"))
		return n.runtime.CheckNetwork(t.Context(), l.Plugins[0], p)
	}
	if err := check(string(text), pod); err != nil {
		t.Error(err)
	}
	wantError(t, check(strings.Replace(string(text), "10.0.0.2/32", "10.0.0.9/32", 1), pod), codeDiffers,
		"no address 10.0.0.2/32")
	wantError(t, check(strings.Replace(string(text), `"eth0"`, `"eth1"`, 1), pod), codeDiffers, "no interface eth0")
	stranger := *pod
	stranger.ContainerID = "stranger"
	wantError(t, check(string(text), &stranger), types.ErrUnknownContainer, "stranger")
	if err := a.manager.Delete(t.Context(), attachmentOf(pod)); err != nil {
		t.Fatal(err)
	}
	wantError(t, check(string(text), pod), types.ErrUnknownContainer, "no such attachment")
}

func TestStatusAndGC(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	var problem *Problem
	n.problem = func() *Problem { return problem }
	a := n.start()
	list := n.conf("1.1.0", "")
	status := func() error { return n.runtime.GetStatusNetworkList(t.Context(), list) }
	if err := status(); err != nil {
		t.Error(err)
	}
	problem = &Problem{Reason: "no podCIDR yet"}
	wantError(t, status(), types.ErrPluginNotAvailable, "no podCIDR yet")
	problem = &Problem{Reason: "map is full", Limited: true}
	wantError(t, status(), types.ErrLimitedConnectivity, "map is full")

	keep, drop := n.pod("keep"), n.pod("drop")
	for _, p := range []*libcni.RuntimeConf{keep, drop} {
		if _, err := n.add(list, p); err != nil {
			t.Fatal(err)
		}
	}
	// libcni would call DEL for what it has in its cache; another runtime's
	// cache may be lost.
	os.RemoveAll(filepath.Join(filepath.Dir(n.runDir), "cache"))
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: keep.ContainerID, IfName: keep.IfName}}}
	if err := n.runtime.GCNetworkList(t.Context(), list, args); err != nil {
		t.Fatal(err)
	}
	if a.rows() != 1 {
		t.Errorf("%d rows", a.rows())
	}
	if _, err := a.manager.Check(t.Context(), attachmentOf(keep)); err != nil {
		t.Error(err)
	}
	if err := n.runtime.GCNetworkList(t.Context(), list, &libcni.GCArgs{}); err != nil {
		t.Fatal(err)
	}
	n.empty(a)
}

func TestConflist(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	dir := filepath.Join(t.TempDir(), "net.d")
	for range 2 {
		if err := WriteConflist(dir, n.socket()); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v %v", files, err)
	}
	list, err := libcni.ConfListFromFile(filepath.Join(dir, ConflistName))
	if err != nil {
		t.Fatal(err)
	}
	if list.CNIVersion != "1.1.0" || list.Name != "myelin" {
		t.Errorf("list %+v", list)
	}
	if _, err := n.runtime.ValidateNetworkList(context.Background(), list); err != nil {
		t.Error(err)
	}
	n.start()
	if _, err := n.add(list, n.pod("web")); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := RemoveConflist(dir); err != nil {
			t.Fatal(err)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Errorf("left %v", files)
	}
}
