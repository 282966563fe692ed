package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"myelin/lab"
)

// servicePath is an agentPath to a Service, of which the server is the only backend: the client's socket is sent there
// when it connects.
//
//	client ─ connect(10.96.0.10) ─▶ server's address       others: 10.97.0.0 …, two backends each, unused
type servicePath struct {
	agentPath
	others int
}

const manyOthers = 10_000

// Services are the ways of a packet from pod to Service, in either family, and the way without one to compare them
// with: of processes in the pods' control groups, where socket programs see them, and where each switch of processes
// costs the kernel its accounting at each level. Binaries as for Agents.
func Services(binaries string) []Scenario {
	path := func(name string, sockets bool) agentPath {
		values := map[string]any{"ipv6.enabled": true, "autoDirectNodeRoutes": true, "socketLB.enabled": sockets,
			"hubble.enabled": false}
		return agentPath{name: name, binaries: binaries, values: values, grouped: true}
	}
	direct := path("veth-cgroup", false)
	return []Scenario{&direct, &servicePath{path("service", true), 0}, &servicePath{path("service-many", true),
		manyOthers}}
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
	var asked objects
	asked.addNetperf(family, path.Listen)
	err = asked.write(service)
	if err == nil {
		err = s.lab.Apply(ctx, service, false)
	}
	if err != nil {
		return Path{}, fmt.Errorf("add the Service: %w", err)
	}
	const ports = 3 // of the Service
	return path, known(ctx, s.lab.Node("node1"), s.others+ports)
}

// addOthers shows them to the agents alone, which follow links to folders: the lab reads its own manifests again and
// again.
func (s *servicePath) addOthers(family Family) error {
	if s.others == 0 {
		return nil
	}
	dir := filepath.Join(s.dir, "others")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	var others objects
	others.addOthers(family, s.others)
	if err := others.write(filepath.Join(dir, "others.json")); err != nil {
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
