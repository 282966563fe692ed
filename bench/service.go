package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"myelin/lab"
)

// servicePath is an agentPath to a Service, of which the server is the only backend: the client's socket is sent there when it
// connects.
//
//	client ─ connect(10.96.0.10) ─▶ server's address       others: 10.97.0.0 …, two backends each, that nobody asks for
type servicePath struct {
	agentPath
	others int
}

const (
	controlPort = 12865 // netserver's own
	dataPort    = 12866 // netserver takes any, but a Service needs to know it
	manyOthers  = 10_000
)

// Services are the ways of a packet from pod to Service, in either family, and the way without one to compare them with: of
// processes in the pods' control groups, where socket programs see them, and where each switch of processes costs the kernel
// its accounting at each level. Binaries as for Agents.
func Services(binaries string) []Scenario {
	path := func(name string, sockets bool) agentPath {
		values := map[string]any{"ipv6.enabled": true, "autoDirectNodeRoutes": true, "socketLB.enabled": sockets}
		return agentPath{name: name, binaries: binaries, values: values, grouped: true}
	}
	direct := path("veth-cgroup", false)
	return []Scenario{&direct, &servicePath{path("service", true), 0}, &servicePath{path("service-many", true), manyOthers}}
}

func (s *servicePath) Setup(ctx context.Context, family Family) (Path, error) {
	path, err := s.agentPath.Setup(ctx, family)
	if err != nil {
		return Path{}, err
	}
	if err := s.addOthers(family); err != nil {
		return Path{}, fmt.Errorf("add %d Services: %w", s.others, err)
	}
	service := filepath.Join(s.dir, "service.json")
	path.Target = clusterIP(family)
	path.Port = dataPort
	err = os.WriteFile(service, benchService(family, path.Target, path.Listen), 0o644)
	if err == nil {
		err = s.lab.Apply(ctx, service, false)
	}
	if err != nil {
		return Path{}, fmt.Errorf("add the Service: %w", err)
	}
	const ports = 3 // of the Service
	return path, known(ctx, s.lab.Node("node1"), s.others+ports)
}

// addOthers shows them to the agents alone, which follow links to folders: the lab reads its own manifests again and again.
func (s *servicePath) addOthers(family Family) error {
	if s.others == 0 {
		return nil
	}
	dir := filepath.Join(s.dir, "others")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "others.json"), otherServices(family, s.others), 0o644); err != nil {
		return err
	}
	return os.Symlink(dir, filepath.Join(s.lab.Manifests(), "others"))
}

// known waits until the node's kernel has that many frontends, and the backends of all.
func known(ctx context.Context, node *lab.Node, frontends int) error {
	const pause = 2 * time.Second // asking takes the agent some work, too
	var last error
	for range patience / pause {
		if last = hasServices(ctx, node, frontends); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		case <-time.After(pause):
		}
	}
	return fmt.Errorf("wait for Services: %w", last)
}

func hasServices(ctx context.Context, node *lab.Node, frontends int) error {
	// The status of the command says how the node is, and a node that waits is not broken.
	out, err := node.Exec(ctx, "myelin", "status", "-o", "json")
	var report struct {
		Tables []struct {
			Name       string
			Rows, Done int
		}
	}
	if jsonErr := json.Unmarshal([]byte(out), &report); jsonErr != nil {
		return errors.Join(err, jsonErr)
	}
	have := map[string]int{}
	for _, t := range report.Tables {
		if t.Name != "frontends" && t.Name != "backends" {
			continue
		}
		if have[t.Name] = t.Done; t.Done < t.Rows {
			return fmt.Errorf("%d of %d %s are in the kernel of %s", t.Done, t.Rows, t.Name, node.Name())
		}
	}
	if have["frontends"] != frontends || have["backends"] == 0 {
		return fmt.Errorf("%s has %d of %d frontends", node.Name(), have["frontends"], frontends)
	}
	return nil
}

func clusterIP(family Family) netip.Addr {
	if family == IPv6 {
		return netip.MustParseAddr("fd00:10:96::10")
	}
	return netip.MustParseAddr("10.96.0.10")
}

// benchService has all that netperf needs on one address, and one backend.
func benchService(family Family, at, backend netip.Addr) []byte {
	ports := fmt.Sprintf(`{"name": "control", "port": %d}, {"name": "tcp", "port": %d}, {"name": "udp", "port": %d, "protocol": "UDP"}`,
		controlPort, dataPort, dataPort)
	return list(serviceJSON(family, "netperf", at, ports, backend))
}

// otherServices are Services of one port with two backends of their own, none of which exists.
func otherServices(family Family, count int) []byte {
	const port = `{"name": "http", "port": 80}`
	at, backend := netip.MustParseAddr("10.97.0.0"), netip.MustParseAddr("10.128.0.0")
	if family == IPv6 {
		at, backend = netip.MustParseAddr("fd00:10:97::"), netip.MustParseAddr("fd00:10:128::")
	}
	items := make([]string, count)
	for i := range items {
		first := backend.Next()
		items[i] = serviceJSON(family, fmt.Sprintf("other-%d", i), at, port, first, first.Next())
		at, backend = at.Next(), first.Next()
	}
	return list(items...)
}

// serviceJSON is a Service and its EndpointSlice.
func serviceJSON(family Family, name string, at netip.Addr, ports string, backends ...netip.Addr) string {
	endpoints := make([]string, len(backends))
	for i, b := range backends {
		endpoints[i] = fmt.Sprintf(`{"addresses": [%q], "conditions": {"ready": true}}`, b)
	}
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": %[1]q, "namespace": "bench"},
 "spec": {"clusterIP": "%[2]s", "clusterIPs": ["%[2]s"], "ipFamilies": ["IPv%[3]d"], "ports": [%[4]s]}},
{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv%[3]d",
 "metadata": {"name": %[1]q, "namespace": "bench", "labels": {"kubernetes.io/service-name": %[1]q}},
 "ports": [%[4]s], "endpoints": [%[5]s]}`, name, at, family, ports, strings.Join(endpoints, ", "))
}

func list(items ...string) []byte {
	return []byte(`{"apiVersion": "v1", "kind": "List", "items": [` + strings.Join(items, ",\n") + "]}\n")
}
