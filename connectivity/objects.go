package connectivity

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// object is one of a test's own: collection is where it is made, e.g.
// "/api/v1/namespaces/x/pods".
type object struct {
	collection, name string
	body             any
}

func (o object) path() string { return o.collection + "/" + o.name }

// Ports of the servers. Those of pods on the host's network, and the hostPort, are on
// the node, so they are ones that hardly anybody has.
const (
	httpPort, tcpPort, udpPort       = 8080, 8081, 8082
	hostPortNumber                   = 14279
	hostHTTP, hostTCP, hostUDP       = 14280, 14281, 14282
	serverLabel, clientLabel         = "server", "client"
	roleLabel                        = "myelin.test/role"
	runLabel                         = "app.kubernetes.io/managed-by"
	runLabelValue                    = "myelin-connectivity-test"
	affinitySeconds            int32 = 600
)

type ports struct{ http, tcp, udp uint16 }

// pod is one of the test's. All of them serve, and all can ask.
type pod struct {
	name, namespace, node, role string
	host                        bool
	hostPort                    uint16
	ports                       ports

	// What the cluster made of it.
	addrs     []netip.Addr // a hostNetwork pod's are its node's
	hostAddrs []netip.Addr // its node's
	problem   string       // why it isn't running
}

func (p *pod) String() string { return p.namespace + "/" + p.name }

// ip is its address of the family of a; the zero Addr if it has none.
func (p *pod) ip(a netip.Addr) netip.Addr {
	for _, own := range p.addrs {
		if own.Is4() == a.Is4() {
			return own
		}
	}
	return netip.Addr{}
}

// own reports whether it has an address of the family of a.
func (p *pod) own(a netip.Addr) bool { return p.ip(a).IsValid() }

// crew is all pods of a run.
type crew struct {
	client, stranger, server, distant, nearHost, farHost, hostPort, other *pod
}

func newCrew(namespace, near, far string) crew {
	inPod, onHost := ports{httpPort, tcpPort, udpPort}, ports{hostHTTP, hostTCP, hostUDP}
	c := crew{
		client:   &pod{name: "client", role: clientLabel, node: near},
		stranger: &pod{name: "stranger", role: "stranger", node: near},
		server:   &pod{name: "near", role: serverLabel, node: near},
		distant:  &pod{name: "far", role: serverLabel, node: far},
		nearHost: &pod{name: "host-near", role: "host", node: near, host: true},
		farHost:  &pod{name: "host-far", role: "host", node: far, host: true},
		hostPort: &pod{name: "hostport", role: "hostport", node: far, hostPort: hostPortNumber},
		other:    &pod{name: "other", role: clientLabel, node: near, namespace: namespace + "-other"},
	}
	if near == far {
		c.farHost = c.nearHost
	}
	for _, p := range c.all() {
		p.ports = inPod
		if p.host {
			p.ports = onHost
		}
		if p.namespace == "" {
			p.namespace = namespace
		}
	}
	return c
}

func (c *crew) all() []*pod {
	list := []*pod{c.client, c.stranger, c.server, c.distant, c.nearHost, c.hostPort, c.other}
	if c.farHost != c.nearHost {
		list = append(list, c.farHost)
	}
	return list
}

// object is the pod as the API server takes it. It is bound to its node at once: what
// is tested is the network, not the scheduler.
func (p *pod) object(image string) object {
	no, now := false, int64(1)
	container := corev1.Container{
		Name: "myelin", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/myelin"},
		Args: []string{"lab", "serve", "--who", p.name, "--http", fmt.Sprint(p.ports.http), "--tcp",
			fmt.Sprint(p.ports.tcp), "--udp", fmt.Sprint(p.ports.udp)},
		// Root, for ICMP.
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(int64), AllowPrivilegeEscalation: &no,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_RAW"}},
		},
	}
	if p.hostPort != 0 {
		container.Ports = []corev1.ContainerPort{{ContainerPort: int32(p.ports.http), HostPort: int32(p.hostPort)}}
	}
	return object{"/api/v1/namespaces/" + p.namespace + "/pods", p.name, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Labels: map[string]string{roleLabel: p.role, hostnameLabel: p.name,
			runLabel: runLabelValue}},
		Spec: corev1.PodSpec{
			NodeName: p.node, HostNetwork: p.host, Containers: []corev1.Container{container},
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			TerminationGracePeriodSeconds: &now,
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}}
}

func namespaceObject(name string) object {
	return object{"/api/v1/namespaces", name, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{runLabel: runLabelValue,
			"pod-security.kubernetes.io/enforce": "privileged"},
	}}}
}

// services are those that the tests ask.
func services(namespace string) []object {
	servers := map[string]string{roleLabel: serverLabel}
	both := corev1.IPFamilyPolicyPreferDualStack
	service := func(name string, change func(*corev1.ServiceSpec)) object {
		spec := corev1.ServiceSpec{Selector: servers, IPFamilyPolicy: &both, Ports: []corev1.ServicePort{
			{Name: "http", Port: httpPort, TargetPort: intstr.FromInt32(httpPort)},
			{Name: "udp", Port: udpPort, TargetPort: intstr.FromInt32(udpPort), Protocol: corev1.ProtocolUDP},
		}}
		change(&spec)
		return object{"/api/v1/namespaces/" + namespace + "/services", name, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{runLabel: runLabelValue}}, Spec: spec,
		}}
	}
	return []object{
		service("echo", func(*corev1.ServiceSpec) {}),
		service("self", func(s *corev1.ServiceSpec) {
			s.Selector = map[string]string{roleLabel: serverLabel, hostnameLabel: "near"}
		}),
		service("headless", func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone }),
		service("sticky", func(s *corev1.ServiceSpec) {
			seconds := affinitySeconds
			s.SessionAffinity = corev1.ServiceAffinityClientIP
			s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{
				TimeoutSeconds: &seconds,
			}}
		}),
		service("nodeport", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }),
		service("local", func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
			s.Selector = map[string]string{roleLabel: serverLabel, hostnameLabel: "far"}
		}),
		service("balanced", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }),
	}
}

// hostnameLabel tells the servers apart.
const hostnameLabel = "myelin.test/name"
