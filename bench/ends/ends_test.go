package ends

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// A process is charged to the end of its network namespace.
func TestEnds(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	client, server := namespace(t, "client"), namespace(t, "server")
	e, err := Begin([]string{client}, []string{server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	spend := func(netns string) Times {
		before, err1 := e.Times()
		out, err2 := exec.Command("ip", "netns", "exec", netns, "sh", "-c",
			"i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").CombinedOutput()
		after, err3 := e.Times()
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatalf("%v %v %s %v", err1, err2, out, err3)
		}
		return after.Sub(before)
	}
	if got := spend(client); got.Client < 10*got.Server {
		t.Errorf("a process of the client is charged so: %+v", got)
	}
	if got := spend(server); got.Server < 10*got.Client {
		t.Errorf("a process of the server is charged so: %+v", got)
	}
}

func namespace(t *testing.T, name string) string {
	name = fmt.Sprintf("mybench-%d-ends-%s", os.Getpid(), name)
	ip := func(ctx context.Context, verb string) {
		if out, err := exec.CommandContext(ctx, "ip", "netns", verb, name).CombinedOutput(); err != nil {
			t.Fatalf("ip netns %s %s: %v: %s", verb, name, err, out)
		}
	}
	ip(t.Context(), "add")
	t.Cleanup(func() { ip(context.Background(), "delete") })
	return name
}
