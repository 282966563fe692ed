package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"myelin/cni/spool"
	"myelin/endpoint"
	"myelin/endpoint/nettest"
)

func attachmentOf(pod *libcni.RuntimeConf) endpoint.Attachment {
	return endpoint.Attachment{ContainerID: pod.ContainerID, IfName: pod.IfName}
}

// TestAgentDown: everything but DEL is refused, DEL is done by the next agent.
func TestAgentDown(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	list := n.conf("1.1.0", "")
	_, err := n.add(list, n.pod("early"))
	wantError(t, err, types.ErrTryAgainLater, n.socket())

	a := n.start()
	gone, stays := n.pod("gone"), n.pod("stays")
	for _, p := range []*libcni.RuntimeConf{gone, stays} {
		if _, err := n.add(list, p); err != nil {
			t.Fatal(err)
		}
	}
	a.stop()
	_, err = n.add(list, n.pod("late"))
	wantError(t, err, types.ErrTryAgainLater, n.socket())
	wantError(t, n.runtime.GetStatusNetworkList(t.Context(), list), types.ErrPluginNotAvailable, n.socket())
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{
		{ContainerID: gone.ContainerID, IfName: "eth0"}, {ContainerID: stays.ContainerID, IfName: "eth0"},
	}}
	if err := n.runtime.GCNetworkList(t.Context(), list, args); err == nil ||
		!strings.Contains(err.Error(), "does not run") {
		t.Errorf("GC: %v", err)
	}
	for range 3 {
		if err := n.del(list, gone); err != nil {
			t.Fatal(err)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(n.runDir, "cni-deletes", "*.json")); len(files) != 1 {
		t.Errorf("queued %v", files)
	}
	a = n.start()
	if a.rows() != 1 || a.ipam.Dump()[0].InUse != 1 {
		t.Errorf("%d rows, %d addresses after the replay", a.rows(), a.ipam.Dump()[0].InUse)
	}
	if _, err := a.manager.Check(t.Context(), attachmentOf(stays)); err != nil {
		t.Error(err)
	}
	if err := n.del(list, stays); err != nil {
		t.Fatal(err)
	}
	n.empty(a)
}

// TestNoDeleteIsLost has DELs come in while the agent starts. Whether they are
// queued, replayed or answered, no pod may remain.
func TestNoDeleteIsLost(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	list := n.conf("1.1.0", "")
	a := n.start()
	for round := range 5 {
		pods := make([]*libcni.RuntimeConf, 12)
		for i := range pods {
			pods[i] = n.pod(fmt.Sprint("pod", round, "-", i))
			if _, err := n.add(list, pods[i]); err != nil {
				t.Fatal(err)
			}
		}
		a.stop()
		var wg sync.WaitGroup
		for _, p := range pods {
			wg.Go(func() {
				if err := n.del(list, p); err != nil {
					t.Error(err)
				}
			})
		}
		a = n.start()
		wg.Wait()
		n.empty(a)
	}
}

// TestAgentDiesInDelete: the call breaks off in the middle, which the plugin
// can't tell from one that was never heard. After "forgotten" it is answered, and
// the agent may still die.
func TestAgentDiesInDelete(t *testing.T) {
	for _, step := range []string{"deleting", "forgotten", "unlink"} {
		t.Run(step, func(t *testing.T) { agentDiesInDelete(t, step) })
	}
}

func agentDiesInDelete(t *testing.T, in string) {
	n := newNode(t, "10.0.0.0/24")
	reached, hang := make(chan struct{}), make(chan struct{})
	n.step = func(step string) error {
		if step == in {
			close(reached)
			<-hang
			return fmt.Errorf("died")
		}
		return nil
	}
	a := n.start()
	list, pod := n.conf("1.1.0", ""), n.pod("web")
	if _, err := n.add(list, pod); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- n.del(list, pod) }()
	<-reached
	go a.stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	close(hang)
	a.stop()
	n.step = nil
	n.empty(n.start())
}

// TestReplayGoesOn: a file that can't be read keeps no other from being done.
func TestReplayGoesOn(t *testing.T) {
	n := newNode(t, "10.0.0.0/24")
	a := n.start()
	list, pod := n.conf("1.1.0", ""), n.pod("web")
	if _, err := n.add(list, pod); err != nil {
		t.Fatal(err)
	}
	queue := spool.Of(n.runDir)
	unlock, err := queue.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := queue.Put(spool.Entry{ContainerID: pod.ContainerID, IfName: pod.IfName}); err != nil {
		t.Fatal(err)
	}
	unlock()
	dir := filepath.Join(n.runDir, "cni-deletes")
	for name, text := range map[string]string{"0.json": "{", "1.json": "{}", "z.json.tmp": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listened := false
	opened, err := ReplayDeletes(t.Context(), nettest.Quiet(), n.runDir, a.manager, func() error {
		listened = true
		return nil
	})
	if !opened || !listened {
		t.Error("did not listen")
	}
	for _, want := range []string{"0.json", "1.json"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %s: %v", want, err)
		}
	}
	n.empty(a)
}
