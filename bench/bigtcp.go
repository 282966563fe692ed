package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"myelin/bench/results"
)

// bigSize is that of the agent's devices with BIG TCP, in bytes.
const bigSize = 196608

// bigWire is node→node with BIG TCP: the bound of pods.
type bigWire struct{ kernelPath }

// BigTCP are node→node and pod→pod with BIG TCP.
func BigTCP(binaries string) []Scenario {
	return []Scenario{
		&bigWire{kernelPath{name: "node-bigtcp"}},
		&agentPath{name: "bigtcp", binaries: binaries, values: map[string]any{
			"ipv6.enabled": true, "hubble.enabled": false, "autoDirectNodeRoutes": true,
			"enableIPv4BIGTCP": true, "enableIPv6BIGTCP": true,
		}},
	}
}

func (b *bigWire) Setup(ctx context.Context, family Family) (Path, error) {
	path, err := b.kernelPath.Setup(ctx, family)
	if err != nil {
		return path, err
	}
	for _, node := range []string{"a", "b"} {
		if err := inNetns(b.prefix+node, grow); err != nil {
			return path, fmt.Errorf("BIG TCP on node %s: %w", node, err)
		}
	}
	return path, nil
}

func grow() error {
	wire, err := netlink.LinkByName("wire0")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetGSOMaxSize(wire, bigSize), netlink.LinkSetGROMaxSize(wire, bigSize),
		netlink.LinkSetGSOIPv4MaxSize(wire, bigSize), netlink.LinkSetGROIPv4MaxSize(wire, bigSize))
}

// BigTCPRatios compares, of what one way of measuring found, pods with nodes with BIG TCP, and with pods without. Names
// end in the family: "bigtcp/stream4".
func BigTCPRatios(way string, family Family, measured []results.Result) []results.Result {
	c := comparison{way: way, family: family, measured: measured}
	for _, test := range []struct{ name, of string }{{"stream", "stream80k"}, {"rr80k", "rr80k"}} {
		name := fmt.Sprintf("%s%d", test.name, family)
		c.compare(test.of, "bigtcp", "node-bigtcp", "bigtcp/"+name)
		c.compare(test.of, "bigtcp", "veth", "bigtcp/gain_"+name)
	}
	return c.list
}
