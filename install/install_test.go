package install

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/chart"
	"myelin/kube"
	"myelin/test/kube/apiserver"
)

// world is a real API server without controllers, of which the test plays those of DaemonSets and Deployments.
type world struct {
	*apiserver.Server
	t       *testing.T
	cluster *kube.Objects
	http    *http.Client
	said    []string
}

func start(t *testing.T) *world {
	s := apiserver.Start(t)
	server, err := kube.NewServer(kube.Options{KubeConfig: s.KubeConfig(apiserver.Admin), Env: os.Getenv,
		Agent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	insecure := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // of this very process' child
	w := &world{Server: s, t: t, http: &http.Client{Transport: insecure}}
	if w.cluster, err = server.Objects(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			w.play("daemonsets", map[string]any{"currentNumberScheduled": 3, "numberMisscheduled": 0,
				"desiredNumberScheduled": 3, "numberReady": 3, "updatedNumberScheduled": 3})
			w.play("deployments", map[string]any{"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2})
			time.Sleep(50 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return w
}

// play does what controllers do: pods come up at once, and are gone at once.
func (w *world) play(plural string, status map[string]any) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name              string  `json:"name"`
				Generation        int64   `json:"generation"`
				DeletionTimestamp *string `json:"deletionTimestamp"`
			} `json:"metadata"`
		} `json:"items"`
	}
	const root = "/apis/apps/v1/namespaces/kube-system/"
	if json.Unmarshal(w.ask(http.MethodGet, root+plural, ""), &list) != nil {
		return
	}
	for _, item := range list.Items {
		path := root + plural + "/" + item.Metadata.Name
		if item.Metadata.DeletionTimestamp != nil {
			w.ask(http.MethodPatch, path, `{"metadata":{"finalizers":null}}`)
			continue
		}
		status["observedGeneration"] = item.Metadata.Generation
		data, _ := json.Marshal(map[string]any{"status": status})
		w.ask(http.MethodPatch, path+"/status", string(data))
	}
}

// ask is for the controllers' side: what fails, as for an object that has gone, is tried again.
func (w *world) ask(method, path, body string) []byte {
	req, err := http.NewRequest(method, w.URL()+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+apiserver.Admin)
	req.Header.Set("Content-Type", "application/merge-patch+json")
	answer, err := w.http.Do(req)
	if err != nil {
		return nil
	}
	defer answer.Body.Close()
	data, _ := io.ReadAll(answer.Body)
	return data
}

func (w *world) options(values map[string]any) Options {
	w.said = nil
	return Options{
		Namespace: "kube-system", Version: "1.2.3", Values: values,
		Say: func(format string, args ...any) { w.said = append(w.said, fmt.Sprintf(format, args...)) },
	}
}

// reachable are values with which agents find the API server.
func reachable(more map[string]any) map[string]any {
	values := map[string]any{"k8sServiceHost": "192.0.2.10"}
	for k, v := range more {
		values[k] = v
	}
	return values
}

func (w *world) apply(values map[string]any) []string {
	w.t.Helper()
	o := w.options(values)
	if err := Apply(w.t.Context(), w.cluster, o); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	if err := Wait(ctx, w.cluster, o); err != nil {
		w.t.Fatal(err)
	}
	return w.said
}

// count is how many steps end so.
func count(said []string, end string) (n int) {
	for _, s := range said {
		if strings.HasSuffix(s, " "+end) {
			n++
		}
	}
	return n
}

// TestInstall installs, does it again, changes values, and uninstalls.
func TestInstall(t *testing.T) {
	w := start(t)
	objects, _, err := Render(w.options(reachable(nil)))
	if err != nil {
		t.Fatal(err)
	}
	all := len(lasting(objects))
	said := w.apply(reachable(nil))
	if count(said, "created") != all || all < 17 || !slices.Contains(said,
		"note: there is no kube-proxy, and kubeProxyReplacement is false: Services are not translated") {
		t.Errorf("first: %q", said)
	}
	all-- // the Namespace of Secrets is created once, and left alone then
	if said := w.apply(reachable(nil)); count(said, "unchanged") != all {
		t.Errorf("again: %q", said)
	}
	said = w.apply(reachable(map[string]any{"myelin": map[string]any{"flowTracking": "always"},
		"kubeProxyReplacement": true}))
	// The pods restart by the sum of the configuration.
	if count(said, "changed") != 3 || count(said, "unchanged") != all-3 {
		t.Errorf("other values: %q", said)
	}
	said = w.apply(reachable(map[string]any{"operator": map[string]any{"enabled": false},
		"image": map[string]any{"repository": "registry.example.org/myelin"}}))
	if !slices.Contains(said, "Deployment kube-system/myelin-operator deleted") ||
		!slices.Contains(said, "PodDisruptionBudget kube-system/myelin-operator deleted") {
		t.Errorf("without operator: %q", said)
	}
	o := w.options(nil)
	if err := Uninstall(t.Context(), w.cluster, o); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"DaemonSet kube-system/myelin deleted", "ConfigMap kube-system/myelin-config deleted",
		"ClusterRole myelin deleted",
		"DaemonSet kube-system/myelin-cleanup: 3 of 3 ready, 3 of this version",
		"DaemonSet kube-system/myelin-cleanup deleted",
	} {
		if !slices.Contains(w.said, want) {
			t.Errorf("uninstalling doesn't say %q: %q", want, w.said)
		}
	}
	for _, path := range []string{"/apis/apps/v1/daemonsets", "/apis/apps/v1/deployments",
		"/api/v1/namespaces/kube-system/configmaps"} {
		if strings.Contains(string(w.Get(path)), `"name":"myelin`) {
			t.Errorf("%s has objects still", path)
		}
	}
	if there, err := Installed(t.Context(), w.cluster, "kube-system"); there || err != nil {
		t.Errorf("installed: %v, %v", there, err)
	}
}

// TestRefused has a cluster in which Myelin would not work, and values that contradict one another.
func TestRefused(t *testing.T) {
	w := start(t)
	refuses := func(want string, values map[string]any, migrate bool) {
		t.Helper()
		o := w.options(values)
		o.MigrateFromCilium = migrate
		if err := Apply(t.Context(), w.cluster, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	refuses("k8sServiceHost must be set", nil, false)
	refuses("k8sServiceHost: auto: there is no ConfigMap kube-public/cluster-info",
		map[string]any{"k8sServiceHost": "auto"}, false)
	refuses("bpf.masquerade: is false while", reachable(map[string]any{"bpf": map[string]any{"masquerade": false}}),
		false)
	refuses("routingMode: ", reachable(map[string]any{"routingMode": "bridge"}), false)
	daemon := func(name, selector string) {
		w.Apply("/apis/apps/v1/namespaces/kube-system/daemonsets/"+name, fmt.Appendf(nil, `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: c, image: c}], nodeSelector: {%[2]s}}
`, name, selector))
	}
	daemon("cilium", "")
	refuses("Cilium runs in this cluster (DaemonSet kube-system/cilium)", reachable(nil), false)
	refuses("DaemonSet kube-system/cilium is not kept to nodes with the label myelin.io/cilium=true",
		reachable(nil), true)
	daemon("cilium", `myelin.io/cilium: "true"`)
	refuses("k8sServiceHost must be set", nil, true)
	daemon("kube-proxy", "")
	o := w.options(map[string]any{"kubeProxyReplacement": true})
	o.MigrateFromCilium = true
	if err := Apply(t.Context(), w.cluster, o); err != nil {
		t.Error(err)
	}
	if text := string(w.Get("/apis/apps/v1/namespaces/kube-system/deployments/myelin-operator")); !strings.Contains(
		text, "--migrate-from-cilium") {
		t.Errorf("the operator doesn't migrate: %s", text)
	}
	text := string(w.Get("/apis/apps/v1/namespaces/kube-system/daemonsets/myelin"))
	if !strings.Contains(text, `{"key":"myelin.io/cilium","operator":"NotIn","values":["true"]}`) ||
		!strings.Contains(text, "leave-cilium") {
		t.Errorf("agents don't wait for Cilium to leave: %s", text)
	}
	if !strings.Contains(strings.Join(w.said, "\n"), "kubectl -n kube-system delete daemonset kube-proxy") {
		t.Errorf("said %q", w.said)
	}
}

// TestValues has values that are refused with their key and the reason, before a cluster is asked.
func TestValues(t *testing.T) {
	for set, want := range map[string]string{
		"k8sServiceHost=https://192.0.2.10:6443": `k8sServiceHost: "https://192.0.2.10:6443" is a URL: want a host ` +
			`name or an address alone, and the port in k8sServicePort`,
		"k8sServiceHost=192.0.2.10:6443": `k8sServiceHost: "192.0.2.10:6443" has a port: `,
		"updateStrategy.type=Recreate": "updateStrategy.type: value must be one of 'RollingUpdate', " +
			"'OnDelete'",
		"updateStrategy.rollingUpdate.max=1":      "updateStrategy.rollingUpdate.max: unknown key",
		"updateStrategy.rollingUpdate.maxSurge=x": "updateStrategy.rollingUpdate.maxSurge: ",
		"operator.updateStrategy.type=OnDelete": "operator.updateStrategy.type: value must be one of " +
			"'RollingUpdate', 'Recreate'",
		"egressGateway.enabled=true": "egressGateway.enabled: true: not yet: egress gateways",
		"bandwidthManager.bbr=true": "bandwidthManager.bbr: needs bandwidthManager.enabled: packets wait in its " +
			"qdiscs",
		"ipam.mode=eni":                           "ipam.mode: not yet: eni; use kubernetes or cluster-pool",
		"routeMode=native":                        "routeMode: unknown key: did you mean routingMode?",
		"devices=[eth0, averyverylongdevicename]": `devices: "averyverylongdevicename" is longer than 15 bytes`,
	} {
		values, err := chart.Values(nil, []string{set})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := Render(Options{Namespace: "kube-system", Version: "1.2.3", Values: values}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: %v, want %s", set, err, want)
		}
	}
	for _, name := range []string{"", "Kube", "a.b", "under_score", strings.Repeat("a", 64)} {
		if _, _, err := Render(Options{Namespace: name, Version: "1.2.3"}); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf("namespace %q: ", name)) {
			t.Errorf("namespace %q: %v", name, err)
		}
	}
	if _, _, err := Render(Options{Namespace: "kube-system"}); err == nil ||
		!strings.Contains(err.Error(), "image.tag: must be set") {
		t.Errorf("a build without a version: %v", err)
	}
}

// TestMetrics has Services for Prometheus come and go, and no ServiceMonitor where the cluster doesn't know that kind.
func TestMetrics(t *testing.T) {
	w := start(t)
	on := map[string]any{"enabled": true}
	said := w.apply(reachable(map[string]any{"prometheus": on, "operator": map[string]any{"prometheus": on}}))
	for _, want := range []string{"Service kube-system/myelin-agent created",
		"Service kube-system/myelin-operator created"} {
		if !slices.Contains(said, want) {
			t.Errorf("doesn't say %q: %q", want, said)
		}
	}
	if said := w.apply(reachable(map[string]any{"prometheus": on})); !slices.Contains(said,
		"Service kube-system/myelin-operator deleted") {
		t.Errorf("without the operator's metrics: %q", said)
	}
	o := w.options(reachable(map[string]any{"prometheus": map[string]any{"enabled": true, "serviceMonitor": on}}))
	if err := Apply(t.Context(), w.cluster, o); err == nil || !strings.Contains(err.Error(), "no kind ServiceMonitor") {
		t.Errorf("a ServiceMonitor without its kind: %v", err)
	}
	if err := Uninstall(t.Context(), w.cluster, w.options(nil)); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(w.Get("/api/v1/namespaces/kube-system/services")), `"name":"myelin`) {
		t.Error("a Service is left")
	}
}

// TestOrder knows the place of each kind that the chart has.
func TestOrder(t *testing.T) {
	metrics := map[string]any{"prometheus": map[string]any{"enabled": true,
		"serviceMonitor": map[string]any{"enabled": true}}}
	most, _, err := Render(Options{Namespace: "kube-system", Version: "1.2.3", Values: metrics})
	if err != nil {
		t.Fatal(err)
	}
	objects, _, err := Render(Options{Namespace: "kube-system", Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range most {
		if order(object) < 0 {
			t.Errorf("%s has no place", kube.RefOf(object.Content))
		}
	}
	list := lasting(objects)
	if len(list) != 17 || kube.RefOf(list[0].Content).Kind != "Namespace" ||
		kube.RefOf(list[16].Content).Kind != "Deployment" {
		t.Errorf("%d objects", len(list))
	}
}

func TestImageOf(t *testing.T) {
	for name, want := range map[string]string{
		"myelin:1.2":                        "map[repository:myelin tag:1.2]",
		"localhost:5000/a/myelin":           "map[repository:localhost:5000/a/myelin]",
		"localhost:5000/myelin:v1":          "map[repository:localhost:5000/myelin tag:v1]",
		"registry.example.org/m@sha256:abc": "map[digest:sha256:abc repository:registry.example.org/m]",
	} {
		if got := fmt.Sprint(imageOf(name)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestDone: what is waited for are ready pods of the newest version, but where users replace them themselves.
func TestDone(t *testing.T) {
	for _, row := range []struct {
		text string
		want bool
	}{
		{`{"updateStrategy":{"type":"RollingUpdate"}}`, false},
		{`{"updateStrategy":{"type":"OnDelete"}}`, true},
	} {
		text := `{"kind":"DaemonSet","metadata":{"generation":2},"spec":` + row.text + `,"status":` +
			`{"observedGeneration":2,"desiredNumberScheduled":3,"numberReady":3,"updatedNumberScheduled":1}}`
		var p progress
		if err := json.Unmarshal([]byte(text), &p); err != nil || p.done() != row.want {
			t.Errorf("%s: %t, %v, want %t", row.text, p.done(), err, row.want)
		}
		p.Status.Ready = 2
		if p.done() {
			t.Errorf("%s: done before all are ready", row.text)
		}
	}
}
