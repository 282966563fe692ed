package cluster

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func object[T any](t *testing.T, text string) *T {
	t.Helper()
	var o T
	if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
		t.Fatalf("%v of\n%s", err, text)
	}
	return &o
}

// check compares the row as JSON, or the errors, one a line.
func check(t *testing.T, row any, err error, want string) {
	t.Helper()
	var got string
	var fields FieldErrors
	switch {
	case errors.As(err, &fields):
		var lines []string
		for _, f := range fields {
			lines = append(lines, f.Error())
		}
		got = strings.Join(lines, "\n")
	case err != nil:
		t.Fatalf("got error %#v, want FieldErrors", err)
	default:
		raw, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		got = string(raw)
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFromNode(t *testing.T) {
	for name, tc := range map[string]struct{ object, want string }{
		"dual stack": {`
metadata: {name: n1, labels: {zone: a}}
spec: {podCIDR: 10.0.1.0/24, podCIDRs: [10.0.1.0/24, "fd00:1::/64"]}
status: {addresses: [{type: Hostname, address: n1}, {type: ExternalIP, address: 1.2.3.4}, {type: InternalIP, address: 192.168.0.1}, {type: InternalIP, address: "fd01::1"}, {type: InternalIP, address: 192.168.0.1}]}
`, `{"name":"n1","labels":{"zone":"a"},"addresses":["192.168.0.1","fd01::1"],"podCIDRs":["10.0.1.0/24","fd00:1::/64"],"source":"test"}`},
		"podCIDR alone": {`
metadata: {name: n1}
spec: {podCIDR: 10.0.1.0/24}
`, `{"name":"n1","podCIDRs":["10.0.1.0/24"],"source":"test"}`},
		"no name": {`{}`, "metadata.name: must be set"},
		"every field bad": {`
metadata: {name: "N 1", namespace: x, labels: {"a b": c, d: "e f"}}
spec: {podCIDR: 10.9.0.0/16, podCIDRs: [10.0.1.1/24, 10.0/16, 10.0.0.0/31, "::/0", "::ffff:10.0.0.0/104", 10.0.2.0/24, 10.0.0.0/16]}
status: {addresses: [{type: InternalIP, address: 192.168.0.300}, {type: InternalIP, address: "::1"}, {type: InternalIP, address: "fe80::1%eth0"}, {type: InternalIP, address: "::ffff:1.2.3.4"}, {type: InternalIP, address: 0.0.0.0}, {type: InternalIP, address: 224.0.0.1}]}
`, `metadata.name: "N 1": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character
metadata.namespace: "x": this kind is in no namespace
metadata.labels: key "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character
metadata.labels[d]: "e f": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character
status.addresses[0].address: "192.168.0.300" is not an IP address
status.addresses[1].address: ::1 is a loopback address
status.addresses[2].address: fe80::1%eth0 has a zone
status.addresses[3].address: ::ffff:1.2.3.4 is an IPv4-mapped address: write 1.2.3.4
status.addresses[4].address: 0.0.0.0 is the unspecified address
status.addresses[5].address: 224.0.0.1 is a multicast address
spec.podCIDR: "10.9.0.0/16" must be the same as spec.podCIDRs[0] "10.0.1.1/24"
spec.podCIDRs[0]: 10.0.1.1/24 has bits set after the prefix: did you mean 10.0.1.0/24?
spec.podCIDRs[1]: "10.0/16" is not a CIDR such as 10.0.1.0/24 or fd00:1::/64
spec.podCIDRs[2]: 10.0.0.0/31 is too small: at most /30
spec.podCIDRs[3]: ::/0 is the unspecified address
spec.podCIDRs[4]: ::ffff:10.0.0.0/104 is an IPv4-mapped address: write 10.0.0.0
spec.podCIDRs[6]: 10.0.0.0/16 overlaps 10.0.2.0/24 of the same list`},
	} {
		t.Run(name, func(t *testing.T) {
			row, err := FromNode(object[corev1.Node](t, tc.object), "test")
			check(t, row, err, tc.want)
		})
	}
}

func TestFromPod(t *testing.T) {
	for name, tc := range map[string]struct{ object, want string }{
		"running": {`
metadata: {name: a, namespace: x, uid: u1, labels: {app: a}, annotations: {k: v}}
spec:
  nodeName: n1
  initContainers: [{name: i, ports: [{name: no, containerPort: 1}]}, {name: s, restartPolicy: Always, ports: [{name: side, containerPort: 15000}]}]
  containers: [{name: c, ports: [{containerPort: 80}, {name: dns, containerPort: 53, protocol: UDP}]}]
status: {phase: Running, podIP: 10.0.1.2, podIPs: [{ip: 10.0.1.2}, {ip: "fd00:1::2"}], hostIP: 192.168.0.1, hostIPs: [{ip: 192.168.0.1}]}
`, `{"namespace":"x","name":"a","uid":"u1","nodeName":"n1","labels":{"app":"a"},"annotations":{"k":"v"},"phase":"Running","ready":true,"addresses":["10.0.1.2","fd00:1::2"],"hostAddresses":["192.168.0.1"],"ports":[{"name":"dns","number":53,"protocol":"UDP"},{"name":"side","number":15000,"protocol":"TCP"}],"source":"test"}`},
		"namespace default, podIP alone": {`
metadata: {name: a}
status: {podIP: 10.0.1.2}
`, `{"namespace":"default","name":"a","addresses":["10.0.1.2"],"source":"test"}`},
		"ready, and being deleted": {`
metadata: {name: a, deletionTimestamp: "2026-01-02T03:04:05Z"}
status: {phase: Running, conditions: [{type: Initialized, status: "False"}, {type: Ready, status: "True"}]}
`, `{"namespace":"default","name":"a","phase":"Running","ready":true,"terminating":true,"source":"test"}`},
		"not ready": {`
metadata: {name: a}
status: {phase: Running, conditions: [{type: Ready, status: "False"}]}
`, `{"namespace":"default","name":"a","phase":"Running","source":"test"}`},
		"not said to be ready": {`
metadata: {name: a}
status: {phase: Running, conditions: [{type: Initialized, status: "True"}]}
`, `{"namespace":"default","name":"a","phase":"Running","source":"test"}`},
		"bad": {`
metadata: {name: a}
spec: {nodeName: "N", containers: [{name: c, ports: [{containerPort: 0}, {containerPort: 70000}, {containerPort: 1, protocol: ICMP}, {name: "UP", containerPort: 2}]}]}
status: {phase: Sleeping, podIP: 10.0.1.9, podIPs: [{ip: 10.0.1.2}, {ip: 10.0.1.3}, {ip: ""}]}
`, `spec.nodeName: "N": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character
status.phase: "Sleeping" is none of Pending, Running, Succeeded, Failed, Unknown
status.podIP: "10.0.1.9" must be the same as status.podIPs[0] "10.0.1.2"
status.podIPs[1].ip: 10.0.1.3 is a second address of the same family as 10.0.1.2
status.podIPs[2].ip: "" is not an IP address
spec.containers[0].ports[0].containerPort: 0 is not in 1..65535
spec.containers[0].ports[1].containerPort: 70000 is not in 1..65535
spec.containers[0].ports[2].protocol: "ICMP" is none of TCP, UDP, SCTP
spec.containers[0].ports[3].name: "UP": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)
spec.containers[0].ports[3].name: "UP": must contain at least one letter (a-z)`},
	} {
		t.Run(name, func(t *testing.T) {
			row, err := FromPod(object[corev1.Pod](t, tc.object), "test")
			check(t, row, err, tc.want)
		})
	}
}

func TestFromNamespace(t *testing.T) {
	row, err := FromNamespace(object[corev1.Namespace](t, "metadata: {name: x, labels: {a: b}}"), "test")
	check(t, row, err, `{"name":"x","labels":{"a":"b","kubernetes.io/metadata.name":"x"},"source":"test"}`)
	row, err = FromNamespace(object[corev1.Namespace](t, "metadata: {name: x.y}"), "test")
	if err == nil || !strings.HasPrefix(err.Error(), `metadata.name: "x.y": `) {
		t.Errorf("got %v, %v for a name with a dot", row, err)
	}
}

// Rows share no memory with the objects of a cache that goes on changing.
func TestRowsAreCopies(t *testing.T) {
	pod := object[corev1.Pod](t, "metadata: {name: a, labels: {a: b}, annotations: {c: d}}")
	row, err := FromPod(pod, "test")
	if err != nil {
		t.Fatal(err)
	}
	pod.Labels["a"], pod.Annotations["c"] = "changed", "changed"
	if row.Labels["a"] != "b" || row.Annotations["c"] != "d" {
		t.Errorf("got %v %v after the object changed", row.Labels, row.Annotations)
	}
}

// filled makes tables with a few pods, of which some say a4 and a6.
func filled(t *testing.T, a4, a6 netip.Addr) (*statedb.DB, Tables, statedb.ReadTxn) {
	t.Helper()
	db := statedb.New()
	tables, err := NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(tables.Nodes, tables.Namespaces, tables.Pods)
	for _, p := range []*Pod{
		{Namespace: "x", Name: "a", NodeName: "n1", Addresses: []netip.Addr{a4, a6}},
		{Namespace: "x", Name: "ab", NodeName: "n10", HostNetwork: true, Addresses: []netip.Addr{a4}},
		{Namespace: "x", Name: "done", NodeName: "n1", Phase: "Succeeded", Addresses: []netip.Addr{a4}},
		{Namespace: "xa", Name: "a", NodeName: "n1", Phase: "Running"},
	} {
		if _, _, err := tables.Pods.Insert(txn, p); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := tables.Nodes.Insert(txn, &Node{Name: "n1", Addresses: []netip.Addr{a6}}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tables.Namespaces.Insert(txn, &Namespace{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	return db, tables, txn.Commit()
}

func TestIndexes(t *testing.T) {
	a4, a6 := netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("fd00::2")
	db, tables, r := filled(t, a4, a6)
	pods := func(q statedb.Query[*Pod]) []string {
		var keys []string
		for p := range tables.Pods.List(r, q) {
			keys = append(keys, p.Key().String())
		}
		slices.Sort(keys)
		return keys
	}
	for name, tc := range map[string]struct {
		query statedb.Query[*Pod]
		want  []string
	}{
		"key":    {PodByKey("x", "a"), []string{"x/a"}},
		"IPv4":   {PodsByAddress(a4), []string{"x/a"}},
		"IPv6":   {PodsByAddress(a6), []string{"x/a"}},
		"no pod": {PodsByAddress(netip.MustParseAddr("10.0.1.3")), nil},
	} {
		if got := pods(tc.query); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
	var inX []string
	for p := range PodsByNamespace(tables.Pods, r, "x") {
		inX = append(inX, p.Name)
	}
	if want := []string{"a", "ab", "done"}; !slices.Equal(inX, want) {
		t.Errorf("pods of a namespace: got %v, want %v", inX, want)
	}
	if n, _, ok := tables.Nodes.Get(r, NodeByAddress(a6)); !ok || n.Name != "n1" {
		t.Errorf("node by address: got %v", n)
	}
	if n, _, ok := tables.Nodes.Get(r, NodeByName("n1")); !ok || n.IPv6() != a6 || n.IPv4().IsValid() {
		t.Errorf("node by name: got %v", n)
	}
	if _, _, ok := tables.Namespaces.Get(r, NamespaceByName("x")); !ok {
		t.Error("namespace by name: none")
	}
	if _, err := NewTables(db); err == nil {
		t.Error("made the tables a second time")
	}
}
