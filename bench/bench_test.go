package bench

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"myelin/bench/results"
	"myelin/endpoint/podlink"
)

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(test.values); got != test.want {
			t.Errorf("median(%v) = %v, want %v", test.values, got, test.want)
		}
	}
}

// No family offers a path that can't carry it, and no two paths would share a row.
func TestAgentsOfAFamily(t *testing.T) {
	for family, want := range map[Family]string{
		IPv4: "veth veth-hubble veth-flows legacy vxlan veth-ipv4 veth-cgroup service service-many nodeport-snat",
		IPv6: "veth veth-hubble veth-flows legacy vxlan veth-cgroup service service-many nodeport-snat",
	} {
		var got []string
		for _, scenario := range append(append(Agents("bin", family), Services("bin")...), NodePort("bin")) {
			got = append(got, scenario.Name())
		}
		if podlink.ProbeNetkit() == nil {
			want = strings.Replace(want, "vxlan", "vxlan netkit netkit-l2", 1)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("IPv%d: %q, want %q", family, got, want)
		}
	}
}

func TestFlowRatios(t *testing.T) {
	row := func(name string, value float64) results.Result {
		return results.Result{Name: name, Value: value, Unit: "1/s"}.Against(1000)
	}
	measured := []results.Result{
		row("vm/veth/rr", 800), row("vm/veth-hubble/rr", 796), row("vm/veth6/crr", 500),
		row("vm/veth-hubble6/crr", 450),
		row("vm/veth/crr", 600), row("machine/veth-hubble/crr", 1),
	}
	for family, want := range map[Family]results.Result{
		IPv4: {Name: "flow/rr_on_vs_off", Value: 796, Unit: "1/s", Baseline: 800, Ratio: 0.995},
		IPv6: {Name: "flow/crr_on_vs_off_v6", Value: 450, Unit: "1/s", Baseline: 500, Ratio: 0.9},
	} {
		if got := FlowRatios("vm", family, measured); len(got) != 1 || got[0] != want {
			t.Errorf("IPv%d: %+v, want %+v", family, got, want)
		}
	}
}

func TestParseThroughput(t *testing.T) {
	got, err := parseThroughput("THROUGHPUT=12345.67\n")
	if err != nil || got != 12345.67 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, out := range []string{"", "THROUGHPUT=0.00\n", "THROUGHPUT=x\n",
		"establish control: are you sure there is a netserver\n"} {
		if got, err := parseThroughput(out); err == nil {
			t.Errorf("%q gave %v", out, got)
		}
	}
}

// All that need no agent carry packets in both families, and leave nothing behind.
func TestScenarios(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, family := range []Family{IPv4, IPv6} {
		for _, scenario := range slices.Concat([]Scenario{Node(), Plain()}, Redirects(), VXLANRedirects(), ciphers()) {
			t.Run(scenario.Name()+family.suffix(), func(t *testing.T) {
				path, err := scenario.Setup(t.Context(), family)
				t.Cleanup(func() {
					if err := scenario.Teardown(context.Background()); err != nil {
						t.Error(err)
					}
					if left, _ := os.ReadDir("/run/netns"); strings.Contains(names(left), path.Client.Netns) {
						t.Errorf("left behind: %s", names(left))
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := run(t.Context(), "ip", "netns", "exec", path.Client.Netns, "ping", "-c1", "-W5",
					path.Target.String()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// ciphers are the paths through devices that encrypt, as far as the kernel has these.
func ciphers() (all []Scenario) {
	for _, e := range Encryptions() {
		kind := map[Cipher]string{WireGuard: "type wireguard", IPsec: "type xfrm if_id 1"}[e.Cipher]
		const probe = "mybench0"
		if ip(context.Background(), "link add "+probe+" "+kind) == nil {
			all = append(all, e.Scenarios("")[:2]...)
			_ = ip(context.Background(), "link delete "+probe)
		}
	}
	return all
}

func TestSweepTakesOnlyTheDead(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	dead, alive := "mybench-"+strconv.Itoa(gone.Process.Pid)+"-sweep-a", "mybench-"+strconv.Itoa(os.Getpid())+"-sweep-a"
	for _, name := range []string{dead, alive} {
		if err := ip(t.Context(), "netns add "+name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ip(context.Background(), "netns delete "+name) })
	}
	if err := Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/run/netns")
	if err != nil {
		t.Fatal(err)
	}
	if left := names(entries); strings.Contains(left, dead) || !strings.Contains(left, alive) {
		t.Errorf("after the sweep: %s", left)
	}
}

func names(entries []os.DirEntry) string {
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return strings.Join(all, " ")
}

// A daemon must outlive the thread that asked for it, and not its stop.
func TestDaemon(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	stops := make(chan func())
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		stop, err := daemon(cmd)
		if err != nil {
			t.Error(err)
		}
		stops <- stop
	}()
	stop := <-stops
	time.Sleep(200 * time.Millisecond)
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("it died with the thread: %v", err)
	}
	stop()
	if err := cmd.Process.Signal(syscall.Signal(0)); err == nil {
		t.Error("it lives on after stop")
	}
	if _, err := daemon(exec.Command("/nonexistent")); err == nil {
		t.Error("a command that can't start is no error")
	}
}

func TestParseCPU(t *testing.T) {
	got, err := parseCPU("cpu  1 2 3 10 20 4 5 0 0 0\ncpu0 1 2 3 10 20 4 5 0 0 0\n")
	if err != nil || got != (cpu{busy: 15, all: 45}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseCPU("intr 1 2 3\n"); err == nil {
		t.Error("a text without processors is no error")
	}
}

func TestBigTCPRatios(t *testing.T) {
	row := func(name string, value float64) results.Result {
		return results.Result{Name: name, Value: value, Unit: "1/s"}.Against(1000)
	}
	got := BigTCPRatios("vm", IPv6, []results.Result{row("vm/node-bigtcp6/rr80k", 500), row("vm/bigtcp6/rr80k", 490),
		row("vm/veth6/rr80k", 400), row("vm/bigtcp/stream80k", 1)})
	want := []results.Result{
		{Name: "bigtcp/rr80k6", Value: 490, Unit: "1/s", Baseline: 500, Ratio: 0.98},
		{Name: "bigtcp/gain_rr80k6", Value: 490, Unit: "1/s", Baseline: 400, Ratio: 1.225},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got = BigTCPRatios("vm", IPv4, []results.Result{row("vm/node-bigtcp/stream80k", 500),
		row("vm/bigtcp/stream80k", 490)})
	want = []results.Result{{Name: "bigtcp/stream4", Value: 490, Unit: "1/s", Baseline: 500, Ratio: 0.98}}
	if !slices.Equal(got, want) {
		t.Errorf("IPv4: got %+v, want %+v", got, want)
	}
}

func TestEncryptionRatios(t *testing.T) {
	row := func(name string, value float64) results.Result {
		return results.Result{Name: name, Value: value, Unit: "1/s"}.Against(1000)
	}
	got := EncryptionRatios(IPv6, []results.Result{
		row("encryption/node-9000-ipsec6/rr", 800), row("encryption/redirect-9000-ipsec6/rr", 500),
		row("encryption/veth-9000-ipsec6/rr", 490), row("encryption/node-9000-ipsec6/stream", 128),
		row("encryption/redirect-9000-ipsec6/stream", 100), row("encryption/veth-9000-ipsec6/stream", 80),
		row("encryption/veth-9000-ipsec/rr", 1),
	})
	want := []results.Result{
		{Name: "ipsec/vm_rr_9000_v6", Value: 490, Unit: "1/s", Baseline: 500, Ratio: 0.98},
		{Name: "ipsec/vm_stream_9000_of_bound_v6", Value: 80, Unit: "1/s", Baseline: 100, Ratio: 0.8},
		{Name: "ipsec/vm_stream_9000_v6", Value: 80, Unit: "1/s", Baseline: 128, Ratio: 0.625},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Half of the instructions of a request, and of a Gbit.
func TestInstructions(t *testing.T) {
	half := map[string]float64{"client": 0.5}
	s := site{values: map[string][]float64{"rr": {20_000}, "stream": {250}},
		shares: map[string]map[string]float64{"rr": half, "stream": half}}
	for _, test := range []struct {
		test Test
		want float64
	}{{Test{Name: "rr", unit: "1/s"}, 25_000}, {Test{Name: "stream", unit: streamUnit}, 2000}} {
		if got := s.instructions(test.test, "client"); got != test.want {
			t.Errorf("%s: %v, want %v", test.test.Name, got, test.want)
		}
	}
}
