package cni

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"myelin/cni/plugin"
	"myelin/endpoint/nettest"
)

// TestLoopback runs the plugin under its other name, as containerd does, without an agent.
func TestLoopback(t *testing.T) {
	nettest.Root(t)
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(os.Getenv(binDir), PluginName),
		filepath.Join(dir, plugin.LoopbackName)); err != nil {
		t.Fatal(err)
	}
	runtime := libcni.NewCNIConfigWithCacheDir([]string{dir}, filepath.Join(dir, "cache"), nil)
	for _, version := range plugin.Versions().SupportedVersions() {
		list, err := libcni.ConfListFromBytes([]byte(`{"cniVersion":"` + version +
			`","name":"cni-loopback","plugins":[{"type":"loopback"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		pod := &libcni.RuntimeConf{ContainerID: "loopback", IfName: "lo", NetNS: nettest.NewNS(t)}
		lo := func() string {
			out, err := exec.Command("nsenter", "--net="+pod.NetNS, "ip", "-br", "link", "show", "lo").CombinedOutput()
			if err != nil {
				t.Fatal(err, string(out))
			}
			return string(out)
		}
		if strings.Contains(lo(), "UP") {
			t.Fatalf("lo is up before ADD: %s", lo())
		}
		if check := runtime.CheckNetworkList(t.Context(), list, pod); version >= "0.4.0" && check == nil {
			t.Errorf("%s: CHECK is content with a lo that is down", version)
		}
		result, err := runtime.AddNetworkList(t.Context(), list, pod)
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		if result.Version() != version || !strings.Contains(lo(), "UP") {
			t.Errorf("%s: result of version %s, link %s", version, result.Version(), lo())
		}
		if version >= "0.4.0" {
			if err := runtime.CheckNetworkList(t.Context(), list, pod); err != nil {
				t.Errorf("%s: %v", version, err)
			}
		}
		for range 2 {
			if err := runtime.DelNetworkList(t.Context(), list, pod); err != nil {
				t.Errorf("%s: %v", version, err)
			}
		}
	}
	missing := &libcni.RuntimeConf{ContainerID: "loopback", IfName: "lo", NetNS: filepath.Join(dir, "none")}
	list,
		err := libcni.ConfListFromBytes(
		[]byte(`{"cniVersion":"1.0.0","name":"cni-loopback","plugins":[{"type":"loopback"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.AddNetworkList(t.Context(), list, missing); err == nil ||
		!strings.Contains(err.Error(), missing.NetNS) {
		t.Errorf("ADD in no namespace: %v", err)
	}
}
