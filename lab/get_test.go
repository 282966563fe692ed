package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// names are what a query finds, "namespace/name" or "name".
func names(t *testing.T, l *Lab, q Query) string {
	t.Helper()
	items, err := l.Get(t.Context(), q)
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, i := range items {
		name := i.FullName()
		if strings.HasPrefix(i.Name, "web-") {
			name = name[:strings.Index(name, "/")] + "/web-…"
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

// TestGet finds objects by kind, name, namespace and labels; findPod finds the pods behind them.
func TestGet(t *testing.T) {
	t.Parallel()
	policy := "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: demo, name: deny}\n" +
		"spec: {podSelector: {}}\n---\n"
	l := up(
		t,
		testOptions(t, bareNodes+policy+workloadYAML("Deployment", "web", "replicas: 1", "echo hello; sleep 1000")+
			plainService("web", "ports: [{port: 80}]")+podYAML("alone", "Always", "sleep 1000")),
	)
	app := labels.SelectorFromSet(labels.Set{"app": "web"})
	for _, c := range []struct {
		q    Query
		want string
	}{
		{Query{Resource: "pods"}, "pod/alone pod/web-…"},
		{Query{Resource: "po", Selector: app}, "pod/web-…"},
		{Query{Resource: "all"}, "pod/alone pod/web-… service/web deployment.apps/web replicaset.apps/web-…"},
		{Query{Resource: "deployments.apps", Names: []string{"default/web"}}, "deployment.apps/web"},
		{Query{Resource: "deploy", Names: []string{"other"}}, `deploy "other" not found`},
		{Query{Resource: "netpol"}, "networkpolicy.networking.k8s.io/deny"},
		{Query{Resource: "netpol", Namespace: "default"}, ""},
		{Query{Resource: "nodes"}, "node/a node/b"},
		{Query{Resource: "secrets"}, `the lab does not have a resource type "secrets"`},
	} {
		if got := names(t, l, c.q); got != c.want {
			t.Errorf("%+v: %s, want %s", c.q, got, c.want)
		}
	}
	for name, want := range map[string]string{
		"deployment/web": "default/web-", "deploy/default/web": "default/web-", "svc/web": "default/web-",
		"pod/alone":    "default/alone",
		"deploy/other": `deploy "other" not found`, "other": `no pod "other"`, "netpol/deny": "has no pod",
	} {
		p := l.findPod(name)
		if text := fmt.Sprint(p.Name(), p.Err()); !strings.Contains(text, want) {
			t.Errorf("%s: %s, want %s", name, text, want)
		}
	}
	for _, c := range []struct{ kind, name, want string }{
		{"deploy", "web", "Pods:\nNAME"}, {"svc", "web", "Selector:"}, {"netpol", "deny", "podSelector: {}"}, {"pod",
			"alone", "Restarts:"},
	} {
		var out bytes.Buffer
		err := l.Describe(t.Context(), &out, Query{Resource: c.kind, Names: []string{c.name}})
		if err != nil || !strings.Contains(out.String(), c.want) {
			t.Errorf("describe %s %s: no %q in %s %v", c.kind, c.name, c.want, out.String(), err)
		}
	}
	for _, name := range []string{"deployment/web", "pod/alone"} {
		if c, err := l.DeleteNamed(t.Context(), name); err != nil || c.Action != resultDeleted {
			t.Errorf("delete %s: %v %v", name, c, err)
		}
	}
	if _, err := l.DeleteNamed(t.Context(), "node/a"); err == nil {
		t.Error("a node is deleted")
	}
	if left := podNames(t, l, ""); len(left) != 0 {
		t.Errorf("pods after delete: %v", left)
	}
}

// TestLogs: what containers wrote, of one or all, the end alone, and as it comes.
func TestLogs(t *testing.T) {
	t.Parallel()
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: two}
spec:
  containers:
  - {name: a, command: [sh, -c, "for i in 1 2 3; do echo line $i; done; sleep 1000"]}
  - {name: b, command: [sh, -c, "echo other; sleep 1000"]}
`
	l := up(t, testOptions(t, bareNodes+pod))
	for _, c := range []struct {
		o           LogOptions
		want, notes string
	}{
		{LogOptions{Tail: -1}, "line 1\nline 2\nline 3\n", "container a of a, b\n"},
		{LogOptions{Tail: 1, Container: "a"}, "line 3\n", ""},
		{LogOptions{Tail: 0, Container: "a"}, "", ""},
		{LogOptions{Tail: 1, All: true}, "[a] line 3\n[b] other\n", ""},
		{LogOptions{Container: "c"}, `pod default/two has no container "c": it has a, b`, ""},
	} {
		eventually(t, fmt.Sprintf("%+v", c.o), func() error {
			var out, notes bytes.Buffer
			c.o.Notes = &notes
			err := l.Logs(t.Context(), &out, "two", c.o)
			got := out.String()
			if err != nil {
				got = err.Error()
			}
			if got != c.want || notes.String() != c.notes {
				return fmt.Errorf("%q, %q", got, notes.String())
			}
			return nil
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- l.Logs(ctx, w, "two", LogOptions{Container: "b", Follow: true, Tail: -1, Notes: io.Discard})
		w.Close()
	}()
	if _, err := l.Pod("two").Exec(ctx, "sh", "-c", "echo more >> "+l.Pod("two").logFile("b")); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, len("other\nmore\n"))
	if _, err := io.ReadFull(r, text); err != nil || string(text) != "other\nmore\n" {
		t.Errorf("followed: %q %v", text, err)
	}
	if err := l.DeletePod(t.Context(), "two"); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil || ctx.Err() != nil {
		t.Errorf("a log goes on after its pod: %v %v", err, ctx.Err())
	}
}
