package lab

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// serviceOf reads a Service as agents do.
func serviceOf(t *testing.T, l *Lab, name string) *corev1.Service {
	t.Helper()
	objects, err := readObjects(l.path("manifests", "service_default_"+name+".yaml"))
	if err != nil || len(objects) != 1 || objects[0].fault != nil {
		t.Fatal(objects, err)
	}
	return objects[0].typed.(*corev1.Service)
}

func plainService(name, spec string) string {
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {%s, selector: {app: web}}\n---\n",
		name,
		spec,
	)
}

// TestServiceAllocation: Services get what they lack, keep it, and say what another one has.
func TestServiceAllocation(t *testing.T) {
	t.Parallel()
	opts := testOptions(t, bareNodes+plainService("web", "type: NodePort, ports: [{port: 80}]"))
	opts.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.50.0.0/24")}
	opts.Values = map[string]any{"nodePort.range": "31000,31099"}
	l := up(t, opts)
	web := serviceOf(t, l, "web")
	addr, port := netip.MustParseAddr(web.Spec.ClusterIP), web.Spec.Ports[0].NodePort
	if !opts.ServiceCIDRs[0].Contains(addr) || port < 31000 || port > 31099 || web.UID == "" {
		t.Errorf("Service %+v", web)
	}
	if got := mustApply(t, l, plainService("web",
		"type: NodePort, ports: [{port: 80}]")); got != "service/default/web unchanged" {
		t.Errorf("the same again: %s", got)
	}
	if got := mustApply(t, l, plainService("web",
		"type: NodePort, ports: [{port: 80}, {name: b, port: 81}]")); got != "service/default/web configured" {
		t.Errorf("another port: %s", got)
	}
	now := serviceOf(t, l, "web")
	if now.Spec.ClusterIP != web.Spec.ClusterIP || now.Spec.Ports[0].NodePort != port ||
		now.Spec.Ports[1].NodePort == 0 ||
		now.UID != web.UID {
		t.Errorf("another port: %+v, was %+v", now.Spec, web.Spec)
	}
	for _, c := range []struct{ spec, want string }{
		{
			"clusterIP: " + web.Spec.ClusterIP + ", ports: [{port: 1}]",
			"spec.clusterIP: " + web.Spec.ClusterIP + " is allocated to Service default/web",
		},
		{
			fmt.Sprintf("type: NodePort, ports: [{port: 80, nodePort: %d}]", port),
			fmt.Sprintf("spec.ports[0].nodePort: TCP/%d is allocated to Service default/web", port),
		},
		{
			"type: NodePort, ports: [{port: 80, nodePort: 30000}]",
			"spec.ports[0].nodePort: 30000 is not in the range of node ports, 31000 to 31099",
		},
	} {
		_, err := applied(t, l, false, plainService("other", c.spec))
		if err == nil || err.Error() != "standard input: Service default/other: "+c.want {
			t.Errorf("%s: %v, want %s", c.spec, err, c.want)
		}
	}
	if _, err := os.Stat(l.path("manifests", "service_default_other.yaml")); err == nil {
		t.Error("a Service that is refused is there")
	}
}

// TestStandIn: a container without a command is a server on its ports, or on those of its Service, known by name and by
// the environment, and its log says so.
func TestStandIn(t *testing.T) {
	t.Parallel()
	image := func(name, ports string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {app: %s}}\n"+
			"spec: {containers: [{name: main, image: %s:v1, args: [x]%s}]}\n---\n", name, name, name, ports)
	}
	l := up(
		t,
		testOptions(t,
			bareNodes+image("web", "")+image("ports", ", ports: [{containerPort: 8081}, {containerPort: 8082}]")+
				image(
					"alone",
					"",
				)+plainService("front", "ports: [{port: 80, targetPort: 8088}]")+podYAML("client", "Always",
				"env; sleep 1000")),
	)
	client := l.Pod("client")
	for _, c := range []struct {
		pod  string
		port int
	}{{"web", 8088}, {"ports", 8081}, {"ports", 8082}, {"alone", 80}} {
		url := fmt.Sprintf("http://127.0.0.1:%d/", c.port)
		eventually(t, c.pod+" "+url, func() error {
			out, err := l.Pod(c.pod).Exec(t.Context(), "curl", "-sS", "-m1", "--noproxy", "*", url)
			if err == nil && !strings.HasPrefix(out, "server  "+c.pod+"\n") {
				return fmt.Errorf("answer %q", out)
			}
			return err
		})
	}
	lines, err := l.StandIns()
	want := "image alone:v1 is not run; `myelin lab serve` stands in"
	if err != nil || len(lines) != 3 || lines[0] != want {
		t.Errorf("stand-ins %q %v", lines, err)
	}
	if log, err := os.ReadFile(l.Pod("alone").logFile("main")); err != nil ||
		!strings.HasPrefix(string(log), want+"\n") {
		t.Errorf("log %q %v, want %s", log, err, want)
	}
	ip := serviceOf(t, l, "front").Spec.ClusterIP
	for _, name := range []string{"front", "front.default", "front.default.svc", "front.default.svc.cluster.local"} {
		if out, err := client.Exec(t.Context(), "getent", "-s", "files", "ahostsv4", name); err != nil ||
			!strings.HasPrefix(out, ip+" ") {
			t.Errorf("%s is %q %v, want %s", name, out, err, ip)
		}
	}
	env, err := os.ReadFile(client.logFile("main"))
	for _, line := range []string{"FRONT_SERVICE_HOST=" + ip, "FRONT_SERVICE_PORT=80", "FRONT_PORT_80_TCP=tcp://" + ip +
		":80"} {
		if err != nil || !strings.Contains(string(env), line+"\n") {
			t.Errorf("the environment has no %s: %s %v", line, env, err)
		}
	}
	if out, err := l.Node("a").Exec(t.Context(), "getent", "-s", "files", "ahostsv4",
		"front.default.svc.cluster.local"); err == nil {
		t.Errorf("a node knows the name of a Service: %s", out)
	}
}
