package show

import (
	"bytes"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// item reads an object into a type; it is 90 seconds old.
func item[T any](t *testing.T, resource, group, text string) Item {
	t.Helper()
	var meta struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	object := new(T)
	for _, into := range []any{&meta, object} {
		if err := yaml.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	m := meta.Metadata
	return Item{
		Resource: resource, Group: group, Namespace: m.Namespace, Name: m.Name, Labels: m.Labels,
		Created: now().Add(-90 * time.Second),
		Object:  object,
	}
}

const web = `
metadata: {namespace: demo, name: web, labels: {app: web}}
spec: {nodeName: node1, containers: [{name: a, image: nginx}, {name: b}]}
status:
  phase: Running
  podIPs: [{ip: 10.0.1.2}, {ip: "fd00::2"}]
  containerStatuses: [{name: a, ready: true, state: {running: {}}}, {name: b, restartCount: 2, state: {running: {}}}]
`

func items(t *testing.T) []Item {
	pod := item[corev1.Pod](t, "pods", "", web)
	pod.Restarts = 2
	return []Item{
		pod,
		item[corev1.Service](t, "services", "", `
metadata: {namespace: demo, name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.7
  selector: {app: web}
  ports: [{port: 80, nodePort: 30080}, {port: 53, protocol: UDP}]
`),
		item[appsv1.Deployment](t, "deployments", "apps", `
metadata: {namespace: demo, name: web}
spec: {replicas: 3, selector: {matchLabels: {app: web}}, template: {spec: {containers: [{name: a, image: nginx}]}}}
status: {readyReplicas: 2, updatedReplicas: 1, availableReplicas: 2}
`),
		item[appsv1.DaemonSet](t, "daemonsets", "apps", `
metadata: {namespace: demo, name: agent}
spec: {template: {spec: {nodeSelector: {disk: ssd}, containers: [{name: a}]}}}
status: {desiredNumberScheduled: 2, currentNumberScheduled: 2, numberReady: 1, updatedNumberScheduled: 2,
	numberAvailable: 1}
`),
		item[batchv1.Job](t, "jobs", "batch", `
metadata: {namespace: demo, name: sum}
spec: {completions: 3, template: {spec: {containers: [{name: a, image: sum}]}}}
status: {succeeded: 3, conditions: [{type: Complete, status: "True"}]}
`),
		item[map[string]any](
			t,
			"networkpolicies",
			"networking.k8s.io",
			"metadata: {namespace: demo, name: deny}\nspec: {podSelector: {}}\n",
		),
	}
}

func written(t *testing.T, items []Item, one bool, o Options) string {
	t.Helper()
	var out bytes.Buffer
	o.Now = now()
	if err := Write(&out, items, one, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Tables have kubectl's columns.
func TestTables(t *testing.T) {
	all := items(t)
	for _, c := range []struct {
		items []Item
		o     Options
		want  string
	}{
		{all[:1], Options{}, `
NAMESPACE   NAME   READY   STATUS    RESTARTS   AGE
demo        web    1/2     Running   2          90s
`},
		{all[:1], Options{Output: "wide", NoNamespaces: true, ShowLabels: true}, `
NAME   READY   STATUS    RESTARTS   AGE   IP                NODE    NOMINATED NODE   READINESS GATES   LABELS
web    1/2     Running   2          90s   10.0.1.2,fd00::2   node1   <none>           <none>            app=web
`},
		{all[1:2], Options{NoNamespaces: true, Output: "wide"}, `
NAME   TYPE           CLUSTER-IP   EXTERNAL-IP   PORT(S)           AGE   SELECTOR
web    LoadBalancer   10.96.0.7    <pending>     80:30080/TCP,53/UDP   90s   app=web
`},
		{all[2:3], Options{NoNamespaces: true, Output: "wide"}, `
NAME   READY   UP-TO-DATE   AVAILABLE   AGE   CONTAINERS   IMAGES   SELECTOR
web    2/3     1            2           90s   a            nginx    app=web
`},
		{all[3:4], Options{NoHeaders: true}, "demo   agent   2   2   1   2   1   disk=ssd   90s\n"},
		{all[4:5], Options{NoHeaders: true, NoNamespaces: true}, "sum   Complete   3/3   90s\n"},
		{all[4:], Options{NoNamespaces: true}, `
NAME            STATUS     COMPLETIONS   AGE
job.batch/sum   Complete   3/3           90s

NAME                                   AGE
networkpolicy.networking.k8s.io/deny   90s
`},
		{all, Options{Output: "name"},
			"pod/web\nservice/web\ndeployment.apps/web\ndaemonset.apps/agent\n" +
				"job.batch/sum\nnetworkpolicy.networking.k8s.io/deny\n"},
	} {
		got, want := written(t, c.items, false, c.o), strings.TrimPrefix(c.want, "\n")
		if squeeze(got) != squeeze(want) {
			t.Errorf("%+v:\n%s\nwant:\n%s", c.o, got, want)
		}
	}
}

// squeeze makes runs of spaces one: widths follow from the cells.
func squeeze(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// One object is shown as itself, several as a List.
func TestEncoded(t *testing.T) {
	for _, format := range []string{"yaml", "json"} {
		for _, one := range []bool{true, false} {
			var got struct {
				Kind     string
				Metadata metav1.ObjectMeta
				Items    []struct{ Metadata metav1.ObjectMeta }
			}
			text := written(t, items(t)[:1], one, Options{Output: format})
			if err := yaml.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			name := got.Metadata.Name
			if !one && len(got.Items) == 1 && got.Kind == "List" {
				name = got.Items[0].Metadata.Name
			}
			if name != "web" {
				t.Errorf("%s, one: %t: %s", format, one, text)
			}
		}
	}
}

// A Pod's status says what its containers do.
func TestPodStatus(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"{status: {phase: Running}}", "Running"},
		{"{status: {phase: Succeeded}}", "Completed"},
		{"{status: {phase: Failed}}", "Error"},
		{"{}", "Pending"},
		{"{spec: {nodeName: a}, status: {phase: Pending, podIPs: [{ip: 10.0.0.1}]}}", "ContainerCreating"},
		{"{status: {phase: Running, containerStatuses: [{restartCount: 3, state: {terminated: {exitCode: 1}}}]}}",
			"CrashLoopBackOff"},
		{"{metadata: {deletionTimestamp: '2026-01-02T03:04:05Z'}, status: {phase: Running}}", "Terminating"},
		{"{status: {phase: Running, containerStatuses: [{restartCount: 0, state: {terminated: {exitCode: 1}}}]}}",
			"Error"},
		{"{status: {phase: Running, containerStatuses: [{restartCount: 5, ready: true, state: {running: {}}}]}}",
			"Running"},
		{"{status: {phase: Failed, containerStatuses: [{restartCount: 5, state: {terminated: {exitCode: 255}}}]}}",
			"Error"},
	} {
		if got := podStatus(item[corev1.Pod](t, "pods", "", c.text).Object.(*corev1.Pod)); got != c.want {
			t.Errorf("%s: %s, want %s", c.text, got, c.want)
		}
	}
}

// Descriptions name what is known of each kind, and what is behind the object.
func TestDescribe(t *testing.T) {
	all := items(t)
	pod := all[0]
	pod.Reason = "0/2 nodes are available"
	for _, c := range []struct {
		item Item
		r    Related
		want []string
	}{
		{pod, Related{Owner: "ReplicaSet/web-1", Notes: []string{"image nginx is not run"}}, []string{
			"Name: web", "Namespace: demo", "Controlled By: ReplicaSet/web-1", "Node: node1",
			"Message: 0/2 nodes are available",
			"IPs: 10.0.1.2,fd00::2", "Image: nginx", "State: Running", "Restarts: 2", "Notes: image nginx is not run",
		}},
		{all[1], Related{Pods: all[:1]}, []string{"Type: LoadBalancer", "IPs: 10.96.0.7", "Port: <unset> 80/TCP",
			"NodePort: 30080/TCP", "Pods:", "web 1/2 Running 2"}},
		{all[2], Related{}, []string{"Ready: 2/3", "Up-to-date: 1", "Images: nginx", "Selector: app=web"}},
		{all[5], Related{Rejected: []string{"spec.x: bad"}}, []string{"Kind: networkpolicy.networking.k8s.io",
			"Rejected: spec.x: bad"}},
	} {
		var out bytes.Buffer
		if err := Describe(&out, c.item, c.r, now()); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(squeeze(out.String()), want) {
				t.Errorf("no %q in\n%s", want, out.String())
			}
		}
	}
}
