package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/bpf"
	"myelin/drop"
)

// TestMain is the client of a path, too, for which this program is started again.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "-client" {
		if err := Client(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// kube-proxy gets complete lists; a watch has no events, and ends with its client.
func TestAPIServer(t *testing.T) {
	var all objects
	all.addNetperf(IPv6, addresses(IPv6.backends().Addr(), 1500)...)
	all.addOthers(IPv6, 7)
	api, err := newAPIServer(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &all)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(api)
	defer server.Close()
	var services corev1.ServiceList
	var slices discoveryv1.EndpointSliceList
	var node corev1.Node
	fetch(t, server.URL+"/api/v1/services?limit=500", http.StatusOK, &services)
	fetch(t, server.URL+"/apis/discovery.k8s.io/v1/endpointslices", http.StatusOK, &slices)
	fetch(t, server.URL+"/api/v1/nodes/a", http.StatusOK, &node)
	endpoints := 0
	for _, s := range slices.Items {
		endpoints += len(s.Endpoints)
	}
	if len(services.Items) != 8 || len(slices.Items) != 9 || endpoints != 1514 || node.Name != "a" ||
		services.ResourceVersion != listVersion {
		t.Errorf("%d Services, %d slices, %d endpoints, node %q, version %q", len(services.Items), len(slices.Items),
			endpoints, node.Name, services.ResourceVersion)
	}
	var status metav1.Status
	fetch(t, server.URL+"/api/v1/services?watch=true&sendInitialEvents=true", http.StatusUnprocessableEntity, &status)
	fetch(t, server.URL+"/api/v1/pods", http.StatusNotFound, &status)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	watch, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/services?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(watch)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if said, err := io.ReadAll(answer.Body); len(said) > 0 || err == nil || ctx.Err() == nil {
		t.Errorf("the watch said %q and ended by %v", said, err)
	}
}

func fetch(t *testing.T, url string, code int, into any) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil || answer.StatusCode != code {
		t.Errorf("%s: status %d, want %d: %v", url, answer.StatusCode, code, err)
	}
}

// A client reaches one Service among others, of one backend and of many, and nothing is left behind.
func TestSocketsPath(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, family := range []Family{IPv4, IPv6} {
		for _, backends := range []int{1, 1500} {
			t.Run(fmt.Sprintf("%s to %d backends", family.protocol(), backends), func(t *testing.T) {
				s := newSockets("sockets", 20, backends)
				defer gone(t, s)
				path, err := s.Setup(t.Context(), family)
				if err != nil {
					t.Fatal(err)
				}
				serves(t, s, path)
			})
		}
	}
}

// serves lets a client ask for the Service, and for a port that it has not, which is no frontend: the client itself
// refuses it.
func serves(t *testing.T, s *socketsPath, path Path) {
	t.Helper()
	server, err := serveByte(s.server(), netip.AddrPortFrom(path.Listen, dataPort))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c, err := startClient(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	// Until it runs, and gets an answer: on a busy machine a client takes its time to start.
	err = c.say("connect %s", netip.AddrPortFrom(path.Target, path.Port))
	if err == nil {
		_, err = c.answer()
	}
	if err != nil {
		t.Fatal(err)
	}
	if l := loaded(t, c, path.Target, path.Port, 200); l.Failed > 0 || l.Requests < 50 {
		t.Errorf("%+v", l)
	}
	if l := loaded(t, c, path.Target, 1, 200); l.Failed != l.Requests || l.First == "" {
		t.Errorf("without a server: %+v", l)
	}
}

// The same where eBPF forwards, which it does on both nodes.
func TestWholePath(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, family := range []Family{IPv4, IPv6} {
		t.Run(family.protocol(), func(t *testing.T) {
			w := whole("myelin", 20).(*wholePath)
			defer func() {
				if err := end(&w.ended); err != nil {
					t.Error(err)
				}
				gone(t, &w.socketsPath)
			}()
			path, err := w.Setup(t.Context(), family)
			if err != nil {
				t.Fatal(err)
			}
			serves(t, &w.socketsPath, path)
			for i, d := range []*bpf.Datapath{w.balancer.datapath, w.other} {
				counters, err := drop.Counters{Cpus: d.Cpus}.Read()
				if err != nil {
					t.Fatal(err)
				}
				for hook, way := range map[bpf.Hook]string{bpf.FromPod: "FORWARD_WIRE", bpf.FromWire: "FORWARD_POD"} {
					if !slices.ContainsFunc(counters, func(c drop.Counter) bool {
						return c.Hook == hook && c.Outcome.Name == way && c.Packets > 0
					}) {
						t.Errorf("%s of node %d forwarded nothing: %+v", hook, i+1, counters)
					}
				}
			}
		})
	}
}

// loaded lets the client ask for half a second, and again if it was too busy a machine for 50 requests, for 20 seconds
// at most.
func loaded(t *testing.T, c *client, at netip.Addr, port uint16, rate int) (sum clientLoad) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); sum.Requests < 50 && time.Now().Before(end); {
		l := loadedOnce(t, c, at, port, rate)
		sum.Requests, sum.Failed, sum.Seconds = sum.Requests+l.Requests, sum.Failed+l.Failed, sum.Seconds+l.Seconds
		if sum.First == "" {
			sum.First = l.First
		}
	}
	return sum
}

func loadedOnce(t *testing.T, c *client, at netip.Addr, port uint16, rate int) (l clientLoad) {
	t.Helper()
	if err := c.say("load %s %d", netip.AddrPortFrom(at, port), rate); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if err := c.say("stop"); err != nil {
		t.Fatal(err)
	}
	line, err := c.answer()
	if err == nil {
		err = json.Unmarshal([]byte(line), &l)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// gone tears a path down and looks for what is left.
func gone(t *testing.T, s *socketsPath) {
	t.Helper()
	dir, cgroup, prefix := s.dir, s.cgroup, s.prefix
	if err := s.Teardown(context.Background()); err != nil {
		t.Error(err)
	}
	left, err := filepath.Glob("/run/netns/" + prefix + "*")
	for _, path := range []string{dir, cgroup} {
		if _, err := os.Stat(path); path == "" || err == nil {
			left = append(left, path)
		}
	}
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Figures of changes are there at a small scale, for both families, and no request fails.
func TestSyncAndRollouts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, family := range []Family{IPv4, IPv6} {
		one, err := AddOne(t.Context(), family, 10)
		if err != nil || one.Value <= 0 || one.Name != "service/add_one_ms_10"+family.suffix() {
			t.Errorf("%+v, %v", one, err)
		}
		all, err := FullSync(t.Context(), family, 10)
		if err != nil || all.Value <= 0 || all.Name != "service/full_sync_s_10"+family.suffix() {
			t.Errorf("%+v, %v", all, err)
		}
		failed, err := Rollouts(t.Context(), family, 10, 300)
		if err != nil || failed.Value != 0 {
			t.Errorf("%+v, %v", failed, err)
		}
	}
}

func TestClientRefuses(t *testing.T) {
	for _, text := range []string{"connect\n", "connect web:80\n", "load 127.0.0.1:80 0\n", "listen 127.0.0.1:80\n"} {
		var out bytes.Buffer
		err := Client(strings.NewReader(text), &out)
		if err == nil || !strings.Contains(err.Error(), "command") && !strings.Contains(err.Error(), "ADDRESS") ||
			out.Len() > 0 {
			t.Errorf("%q: %v, said %q", text, err, out.String())
		}
	}
}

func TestMaglev(t *testing.T) {
	for _, r := range Maglev() {
		if most := map[string]float64{"maglev/excess_moved": 1, "maglev/weight_error": 2}[r.Name]; r.Value <= 0 ||
			r.Value > most {
			t.Errorf("%s: %g %s, at most %g", r.Name, r.Value, r.Unit, most)
		}
	}
}
