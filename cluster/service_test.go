package cluster

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestFromService(t *testing.T) {
	for name, tc := range map[string]struct{ object, want string }{
		"everything": {`
metadata: {name: web, namespace: x, uid: u1, creationTimestamp: "2026-01-02T03:04:05Z", labels: {app: web}, annotations: {a: b, kubectl.kubernetes.io/last-applied-configuration: "{}"}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, "fd00:96::1"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  externalIPs: [192.0.2.1, "2001:db8::1", 192.0.2.1]
  ports: [{name: a, port: 80, nodePort: 30080, targetPort: web, appProtocol: kubernetes.io/h2c}, {name: b, port: 80, protocol: UDP, targetPort: 53}, {name: c, port: 5, protocol: SCTP}]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 32000
  loadBalancerClass: io.cilium/node
  loadBalancerSourceRanges: [" 192.0.2.0/24", x]
  publishNotReadyAddresses: true
  trafficDistribution: PreferClose
status: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {ip: "2001:db8::2", ipMode: VIP}, {ip: 198.51.100.3, ipMode: Proxy}, {hostname: a.example.com}]}}
`, `{"namespace":"x","name":"web","uid":"u1","labels":{"app":"web"},"annotations":{"a":"b"},"selector":{"app":"web"},"created":"2026-01-02T03:04:05Z","type":"LoadBalancer","clusterIPs":["10.96.0.1","fd00:96::1"],"families":["IPv4","IPv6"],"externalIPs":["192.0.2.1","2001:db8::1"],"ingress":["198.51.100.1","2001:db8::2"],"ports":[{"name":"a","protocol":"TCP","port":80,"nodePort":30080,"targetName":"web"},{"name":"b","protocol":"UDP","port":80,"target":53},{"name":"c","protocol":"SCTP","port":5}],"affinity":60000000000,"externalLocal":true,"internalLocal":true,"publishNotReady":true,"healthCheckNodePort":32000,"loadBalancerClass":"io.cilium/node","trafficDistribution":"PreferClose","sourceRanges":[" 192.0.2.0/24","x"],"source":"test"}`},
		"least": {`
metadata: {name: a}
spec: {ports: [{port: 1, targetPort: ""}], sessionAffinity: ClientIP}
`, `{"namespace":"default","name":"a","type":"ClusterIP","ports":[{"protocol":"TCP","port":1}],"affinity":10800000000000,"source":"test"}`},
		"headless": {`{metadata: {name: a}, spec: {clusterIP: None}}`,
			`{"namespace":"default","name":"a","type":"ClusterIP","headless":true,"source":"test"}`},
		"external name": {`{metadata: {name: a}, spec: {type: ExternalName, externalName: b.example.com}}`,
			`{"namespace":"default","name":"a","type":"ExternalName","source":"test"}`},
		"no ports": {`{metadata: {name: a}, spec: {clusterIP: 10.96.0.1}}`, `spec.ports: must be set`},
	} {
		t.Run(name, func(t *testing.T) {
			row, err := FromService(object[corev1.Service](t, tc.object), "test")
			check(t, row, err, tc.want)
		})
	}
}

func TestFromServiceBad(t *testing.T) {
	row, err := FromService(object[corev1.Service](t, `
metadata: {name: A, labels: {a: "b c"}}
spec:
  type: Cluster
  clusterIP: 10.96.0.9
  clusterIPs: [10.96.0.1, 10.96.0.2, None]
  ipFamilies: [IPv4, IPv5, IPv4]
  ipFamilyPolicy: DualStack
  externalIPs: [224.0.0.1, 127.0.0.1]
  ports: [{name: a, port: 0}, {name: b, port: 80, nodePort: 70000, targetPort: -1}, {name: b, port: 81, protocol: ICMP}, {name: C, port: 82, targetPort: "1"}, {port: 83}, {name: d, port: 82}, {name: b, port: 84}]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}
  externalTrafficPolicy: Node
  internalTrafficPolicy: Node
  healthCheckNodePort: -1
  loadBalancerClass: "a b"
  trafficDistribution: Best
status: {loadBalancer: {ingress: [{ip: x}, {ip: 192.0.2.1, ipMode: Best}]}}
`), "test")
	check(t, row, err,
		`metadata.name: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', `+
			`and must start and end with an alphanumeric character
metadata.labels[a]: "b c": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character
spec.type: "Cluster" is none of ClusterIP, NodePort, LoadBalancer, ExternalName
spec.ipFamilies[1]: "IPv5" is none of IPv4, IPv6
spec.ipFamilies[2]: "IPv4" is there twice
spec.ipFamilyPolicy: "DualStack" is none of SingleStack, PreferDualStack, RequireDualStack
spec.clusterIP: "10.96.0.9" must be the same as spec.clusterIPs[0] "10.96.0.1"
spec.clusterIPs[1]: 10.96.0.2 is a second address of the same family as 10.96.0.1
spec.clusterIPs[2]: "None" is not an IP address
spec.externalIPs[0]: 224.0.0.1 is a multicast address
spec.externalIPs[1]: 127.0.0.1 is a loopback address
status.loadBalancer.ingress[0].ip: "x" is not an IP address
status.loadBalancer.ingress[1].ipMode: "Best" is none of VIP, Proxy
spec.ports[0].port: 0 is not in 1..65535
spec.ports[1].nodePort: 70000 is not in 1..65535
spec.ports[1].targetPort: -1 is not in 1..65535
spec.ports[2].protocol: "ICMP" is none of TCP, UDP, SCTP
spec.ports[3].name: "C": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character
spec.ports[3].targetPort: "1": must contain at least one letter (a-z)
spec.ports[4].name: must be set
spec.ports[5].port: 82/TCP is there twice
spec.ports[6].name: "b" is there twice
spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401 is not in 1..86400
spec.externalTrafficPolicy: "Node" is none of Cluster, Local
spec.internalTrafficPolicy: "Node" is none of Cluster, Local
spec.healthCheckNodePort: -1 is not in 1..65535
spec.loadBalancerClass: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character
spec.trafficDistribution: "Best" is none of PreferClose, PreferSameZone, PreferSameNode`)
}

func TestFromEndpointSlice(t *testing.T) {
	for name, tc := range map[string]struct{ object, want string }{
		"everything": {`
metadata: {name: web-1, namespace: x, labels: {kubernetes.io/service-name: web}, annotations: {service.cilium.io/weight: "5", endpoints.kubernetes.io/last-change-trigger-time: now}}
addressType: IPv6
ports: [{name: a, port: 80, protocol: UDP, appProtocol: x}, {port: 81}, {name: any}]
endpoints:
- {addresses: ["fd00::1", "fd00::2"], nodeName: n1, zone: za, hostname: h, targetRef: {kind: Pod, name: p, uid: u}, hints: {forZones: [{name: za}, {name: zb}], forNodes: [{name: n1}]}}
- {addresses: ["fd00::3"], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: ["fd00::4"], targetRef: {kind: Node, name: n1}, conditions: {ready: false, serving: false}}
`, `{"namespace":"x","name":"web-1","service":"web","annotations":{"service.cilium.io/weight":"5"},"addressType":"IPv6","ports":[{"name":"a","protocol":"UDP","port":80},{"protocol":"TCP","port":81}],"endpoints":[{"address":"fd00::1","ready":true,"serving":true,"node":"n1","zone":"za","pod":{"namespace":"x","name":"p"},"forZones":["za","zb"],"forNodes":["n1"]},{"address":"fd00::3","serving":true,"terminating":true},{"address":"fd00::4"}],"source":"test"}`},
		"names": {`{metadata: {name: a}, addressType: FQDN, endpoints: [{addresses: [a.example.com]}]}`,
			`{"namespace":"default","name":"a","addressType":"FQDN","source":"test"}`},
		"every field bad": {`
metadata: {name: "a b"}
addressType: IPv4
ports: [{name: a, port: 0}, {name: a, port: 1}, {name: A, port: 70000}, {name: b, port: 1, protocol: ICMP}]
endpoints: [{addresses: []}, {addresses: ["fd00::1"]}, {addresses: [10.0.0.1, x], nodeName: "N 1"}, {addresses: [0.0.0.0]}]
`, `metadata.name: "a b": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character
ports[0].port: 0 is not in 1..65535
ports[1].name: "a" is there twice
ports[2].name: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character
ports[2].port: 70000 is not in 1..65535
ports[3].protocol: "ICMP" is none of TCP, UDP, SCTP
endpoints[0].addresses: must be set
endpoints[1].addresses[0]: fd00::1 is not of addressType IPv4
endpoints[2].addresses[1]: "x" is not an IP address
endpoints[2].nodeName: "N 1": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character
endpoints[3].addresses[0]: 0.0.0.0 is the unspecified address`},
		"no type": {`{metadata: {name: a}}`, `addressType: "" is none of IPv4, IPv6, FQDN`},
	} {
		t.Run(name, func(t *testing.T) {
			row, err := FromEndpointSlice(object[discoveryv1.EndpointSlice](t, tc.object), "test")
			check(t, row, err, tc.want)
		})
	}
}

func TestHostPorts(t *testing.T) {
	for name, tc := range map[string]struct{ object, want string }{
		"good": {`
metadata: {name: a}
spec: {containers: [{name: c, ports: [{containerPort: 80, hostPort: 8080}, {containerPort: 53, hostPort: 53, hostIP: "::1", protocol: UDP}, {containerPort: 1}]}]}
`, `{"namespace":"default","name":"a","hostPorts":[{"port":8080,"target":80,"protocol":"TCP"},{"address":"::1","port":53,"target":53,"protocol":"UDP"}],"source":"test"}`},
		"bad": {`
metadata: {name: a}
spec: {containers: [{name: c, ports: [{containerPort: 80, hostPort: 70000}, {containerPort: 81, hostPort: 81, hostIP: x}]}]}
`, `spec.containers[0].ports[0].hostPort: 70000 is not in 1..65535
spec.containers[0].ports[1].hostIP: "x" is not an address of a node`},
		"host network": {`
metadata: {name: a}
spec: {hostNetwork: true, containers: [{name: c, ports: [{containerPort: 80, hostPort: 80}]}]}
`, `{"namespace":"default","name":"a","hostNetwork":true,"source":"test"}`},
	} {
		t.Run(name, func(t *testing.T) {
			row, err := FromPod(object[corev1.Pod](t, tc.object), "test")
			check(t, row, err, tc.want)
		})
	}
}

// Every field counts in Equal, or a change of it would never be seen.
func TestEveryFieldCounts(t *testing.T) {
	everyFieldCounts(t, (*Service).Equal)
	everyFieldCounts(t, (*EndpointSlice).Equal)
	everyFieldCounts(t, (*Pod).Equal)
	everyFieldCounts(t, func(a, b *Endpoint) bool { return a.Equal(*b) })
}

func everyFieldCounts[T any](t *testing.T, equal func(a, b *T) bool) {
	t.Helper()
	for i := range reflect.TypeFor[T]().NumField() {
		var changed, base T
		field := reflect.ValueOf(&changed).Elem().Field(i)
		name := reflect.TypeFor[T]().Field(i).Name
		switch field.Interface().(type) {
		case time.Time:
			field.Set(reflect.ValueOf(time.Unix(1, 0)))
		case netip.Addr:
			field.Set(reflect.ValueOf(netip.IPv6Unspecified()))
		case Key:
			field.Set(reflect.ValueOf(Key{Name: "x"}))
		default:
			switch field.Kind() {
			case reflect.String:
				field.SetString("x")
			case reflect.Bool:
				field.SetBool(true)
			case reflect.Int64:
				field.SetInt(1)
			case reflect.Uint16:
				field.SetUint(1)
			case reflect.Slice:
				field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			case reflect.Map:
				field.Set(reflect.ValueOf(map[string]string{"a": "b"}))
			default:
				t.Fatalf("%T.%s: no value of %s to try", base, name, field.Type())
			}
		}
		if equal(&changed, &base) || !equal(&changed, &changed) {
			t.Errorf("%T: a change of %s is not seen", base, name)
		}
	}
}
