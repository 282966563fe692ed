package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// bareNodes are two nodes without pods.
const bareNodes = `
apiVersion: v1
kind: Node
metadata: {name: a, labels: {disk: ssd}}
spec: {podCIDRs: [10.0.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.9.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: b}
spec: {podCIDRs: [10.0.2.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.9.2}]}
---
`

// workloadYAML is a workload in apps/v1 of Pods that run a shell script.
func workloadYAML(kind, name string, spec, script string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: %s
metadata: {name: %s}
spec:
  selector: {matchLabels: {app: %s}}
  %s
  template:
    metadata: {labels: {app: %s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: %s, command: [sh, -c, %q]}]
---
`, kind, name, name, spec, name, name, script)
}

// applied applies manifests from standard input and returns what became of each object.
func applied(t *testing.T, l *Lab, prune bool, manifests string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []string
	err := l.ApplyAll(ctx, ApplyOptions{
		Paths: []string{"-"}, Stdin: strings.NewReader(manifests), Prune: prune,
		Each: func(c Change) { got = append(got, c.String()) },
	})
	return strings.Join(got, "; "), err
}

func mustApply(t *testing.T, l *Lab, manifests string) string {
	t.Helper()
	got, err := applied(t, l, false, manifests)
	if err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	return got
}

// podNames are the pods whose names begin with a prefix, "name@node", sorted.
func podNames(t *testing.T, l *Lab, prefix string) []string {
	t.Helper()
	pods, err := l.Pods()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range pods {
		if s := p.State(); strings.HasPrefix(s.Name, prefix) {
			names = append(names, s.Name+"@"+s.Node)
			if s.Phase != "Running" {
				t.Errorf("pod %s is %s: %s", s.Name, s.Phase, s.Message)
			}
		}
	}
	slices.Sort(names)
	return names
}

func onNode(names []string, node string) (n int) {
	for _, name := range names {
		if strings.HasSuffix(name, "@"+node) {
			n++
		}
	}
	return n
}

// TestWorkloads: apply returns when what is applied runs; then nothing of what was before it does.
//
//	┌─ a (disk=ssd) ─┐  ┌─ b ────────────┐
//	│ web-… each-…   │  │ web-… each-…   │
//	└───────┬────────┘  └───────┬────────┘
//	════════╧═══════════════════╧═════════
func TestWorkloads(t *testing.T) {
	t.Parallel()
	l := up(t, testOptions(t, bareNodes+
		workloadYAML("Deployment", "web", "replicas: 4", "sleep 1000")+workloadYAML("DaemonSet", "each",
		"", "sleep 1000")))
	web, each := podNames(t, l, "web-"), podNames(t, l, "each-")
	if len(web) != 4 || onNode(web, "a") != 2 || len(each) != 2 || onNode(each, "a") != 1 {
		t.Errorf("pods %v, %v", web, each)
	}
	if got := mustApply(t, l, workloadYAML("Deployment", "web", "replicas: 4",
		"sleep 1000")); got != "deployment/default/web unchanged" {
		t.Errorf("the same again: %s", got)
	}
	if again := podNames(t, l, "web-"); !slices.Equal(again, web) {
		t.Errorf("pods %v, were %v", again, web)
	}

	mustApply(t, l, workloadYAML("Deployment", "web", "replicas: 2", "sleep 1000"))
	fewer := podNames(t, l, "web-")
	if len(fewer) != 2 || onNode(fewer, "a") != 1 {
		t.Errorf("scaled down: %v of %v", fewer, web)
	}
	mustApply(t, l, workloadYAML("Deployment", "web", "replicas: 3", "sleep 2000"))
	rolled := podNames(t, l, "web-")
	if len(rolled) != 3 || slices.ContainsFunc(rolled, func(name string) bool { return slices.Contains(fewer, name) }) {
		t.Errorf("a new template: %v, were %v", rolled, fewer)
	}
	gone, _, _ := strings.Cut(rolled[0], "@")
	if err := l.DeletePod(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if now := podNames(t, l, "web-"); len(now) != 3 || slices.Contains(now, rolled[0]) {
		t.Errorf("a deleted pod is not replaced: %v", now)
	}
	if got := mustApply(t, l, workloadYAML("DaemonSet", "each", "",
		"sleep 2000")); got != "daemonset/default/each configured" {
		t.Errorf("a DaemonSet's new template: %s", got)
	}
	if now := podNames(t, l, "each-"); len(now) != 2 || now[0] == each[0] {
		t.Errorf("a DaemonSet's new template: %v, were %v", now, each)
	}
	if got, err := applied(t, l, true, workloadYAML("DaemonSet", "each", "", "sleep 2000")); err != nil ||
		got != "daemonset/default/each unchanged; deployment/default/web pruned" {
		t.Errorf("prune: %s %v", got, err)
	}
	if left := podNames(t, l, ""); len(left) != 2 {
		t.Errorf("pods after prune: %v", left)
	}
	if files, _ := filepath.Glob(l.path("manifests", "replicaset_*")); len(files) != 0 {
		t.Errorf("ReplicaSets after prune: %v", files)
	}
}

// TestStatefulSet: pods keep their names, are known by them, and are replaced one after another.
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: db}\n" +
		"spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}\n---\n"
	db := func(script string) string {
		return workloadYAML("StatefulSet", "db", "replicas: 2\n  serviceName: db", script)
	}
	l := up(t, testOptions(t, bareNodes+service+db("sleep 1000")+podYAML("client", "Always", "sleep 1000")))
	if names := podNames(t, l, "db-"); !slices.Equal(names, []string{"db-0@b", "db-1@a"}) &&
		!slices.Equal(names, []string{"db-0@a", "db-1@b"}) {
		t.Errorf("pods %v", names)
	}
	before := l.Pod("db-1").State()
	for name, pod := range map[string]string{
		"db-0.db": "db-0", "db-1.db": "db-1", "db-1.db.default": "db-1", "db-1.db.default.svc.cluster.local": "db-1",
	} {
		eventually(t, name, func() error {
			out, err := l.Pod("client").Exec(t.Context(), "getent", "-s", "files", "ahostsv4", name)
			if want := l.Pod(pod).IPv4().String() + " "; err == nil && !strings.HasPrefix(out, want) {
				return fmt.Errorf("%q, want %s", out, want)
			}
			return err
		})
	}
	mustApply(t, l, db("sleep 2000"))
	if names := podNames(t, l, "db-"); len(names) != 2 || l.Pod("db-1").State().ContainerID == before.ContainerID {
		t.Errorf("a new template: %v", names)
	}
	eventually(t, "the new address of db-1", func() error {
		out, err := l.Pod("client").Exec(t.Context(), "getent", "-s", "files", "ahostsv4", "db-1.db")
		if want := l.Pod("db-1").IPv4().String() + " "; err == nil && !strings.HasPrefix(out, want) {
			return fmt.Errorf("%q, want %s", out, want)
		}
		return err
	})
}

// TestJob runs to completion, as often as it says.
func TestJob(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	job := func(name, spec, script string) string {
		return fmt.Sprintf("apiVersion: batch/v1\nkind: Job\nmetadata: {name: %s}\nspec:\n  %s\n  template:\n    "+
			"spec:\n"+
			"      restartPolicy: Never\n      containers: [{name: main, command: [sh, -c, %q]}]\n---\n", name,
			spec, script)
	}
	l := up(t, testOptions(t, bareNodes+
		job("sum", "completions: 3\n  parallelism: 2\n  completionMode: Indexed",
			"touch "+dir+"/$JOB_COMPLETION_INDEX")+
		job("bad", "backoffLimit: 1", "exit 3")))
	phases := func() string {
		pods, err := l.Pods()
		if err != nil {
			t.Fatal(err)
		}
		n := map[string]int{}
		for _, p := range pods {
			name, _, _ := strings.Cut(p.State().Name, "-")
			n[name+" "+p.State().Phase]++
		}
		return fmt.Sprint(n)
	}
	eventually(t, "the Jobs", func() error {
		if got := phases(); got != "map[bad Failed:2 sum Succeeded:3]" {
			return errors.New(got)
		}
		return nil
	})
	if files, err := filepath.Glob(dir + "/?"); err != nil || len(files) != 3 {
		t.Errorf("indexes that ran: %v %v", files, err)
	}
	if err := l.Delete(t.Context(), l.opts.Manifests); err == nil ||
		!strings.Contains(err.Error(), "nodes can't leave") {
		t.Errorf("delete nodes: %v", err)
	}
}

// TestUnschedulable: a pod that no node suits does not keep anything from running, and is named.
func TestUnschedulable(t *testing.T) {
	t.Parallel()
	bare := func(name, selector string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {nodeSelector: {%s}, "+
			"containers: [{name: main, command: [sleep, '1000']}]}\n---\n", name, selector)
	}
	l := up(
		t,
		testOptions(
			t,
			bareNodes+bare("fast", "disk: ssd")+bare("nowhere", "disk: tape")+bare("other",
				"kubernetes.io/hostname: b"),
		),
	)
	if names := podNames(t, l, ""); !slices.Equal(names, []string{"fast@a", "other@b"}) {
		t.Errorf("pods %v", names)
	}
	troubles, err := l.Troubles(t.Context())
	const want = "pod default/nowhere is not scheduled: 0/2 nodes are available: " +
		"2 node(s) didn't match Pod's node affinity/selector"
	if err != nil || !slices.Equal(troubles, []string{want}) {
		t.Errorf("troubles %q %v, want %s", troubles, err, want)
	}
	before := l.Pod("fast").State().ContainerID
	if got := mustApply(t, l, bare("fast", "disk: ssd")); got != "pod/default/fast unchanged" ||
		l.Pod("fast").State().ContainerID != before {
		t.Errorf("the same again: %s", got)
	}
	if got := mustApply(t, l, bare("fast", "kubernetes.io/os: linux")); got != "pod/default/fast configured" {
		t.Errorf("another selector: %s", got)
	}
	if err := l.Pod("fast").Err(); err != nil || l.Pod("fast").State().ContainerID == before {
		t.Errorf("another selector left the pod: %v", err)
	}
}

// TestWorkloadErrors: what can't run is refused with file, object and field, and nothing of the file is applied.
func TestWorkloadErrors(t *testing.T) {
	t.Parallel()
	l := up(t, testOptions(t, bareNodes))
	for _, c := range []struct{ yaml, want string }{
		{workloadYAML("Deployment", "web", "replica: 4", ""),
			"standard input: Deployment default/web: spec.replica: unknown field"},
		{workloadYAML("Deployment", "web", "replicas: -1", ""),
			"standard input: Deployment default/web: spec.replicas: -1 must not be negative"},
		{workloadYAML("Deployment", "web", "replicas: many", ""), "standard input: Deployment default/web: "},
		{strings.Replace(workloadYAML("DaemonSet", "web", "", ""), "labels: {app: web}", "labels: {app: db}", 1),
			"standard input: DaemonSet default/web: spec.template.metadata.labels: app=db does not match " +
				"spec.selector app=web"},
	} {
		if got, err := applied(t, l, false, c.yaml); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s %v, want %s", got, err, c.want)
		}
	}
	if files, err := os.ReadDir(l.Manifests()); err != nil || len(files) != 3 { // two nodes, and status
		t.Errorf("files %v %v", files, err)
	}
}
