package bench

import (
	"context"
	"fmt"
	"strings"

	"myelin/bench/results"
)

// connects are so many new connections, few enough for many rounds: what else the machine does hits one run, and the
// median is of the others.
const connects = 10_000

func crr(name string) []Test {
	return []Test{{Name: name, netperf: "TCP_CRR", count: connects, unit: "1/s"}}
}

// AgainstKubeProxy measures new connections to one of so many Services: by kube-proxy in both of its modes, whose
// programs are in a folder, by our sockets, by all that takes its place, and without a Service. The last results are
// ratios to the better one of kube-proxy, of all that takes its place and of the sockets alone.
func AgainstKubeProxy(ctx context.Context, opts Options, programs string, services int) ([]results.Result, error) {
	opts.Way, opts.Tests = "service", crr(fmt.Sprintf("crr-%d", services))
	list, err := Measure(ctx, opts, []Scenario{
		direct(), kubeProxyScenario(programs, "iptables", services), kubeProxyScenario(programs, "nftables", services),
		sockets("sockets", services, 1), whole("myelin", services),
	})
	if err != nil {
		return nil, err
	}
	best, sockets, whole := max(list[1].Value, list[2].Value), list[3], list[4]
	whole.Name = fmt.Sprintf("service/crr_vs_kubeproxy_%d%s", services, opts.Family.suffix())
	sockets.Name = fmt.Sprintf("service/sockets_vs_kubeproxy_%d%s", services, opts.Family.suffix())
	return append(list, whole.Against(best), sockets.Against(best)), nil
}

// Flat measures whether more Services or more backends make new connections slower: the ratio to 4 Services of one
// backend.
func Flat(ctx context.Context, opts Options) ([]results.Result, error) {
	opts.Way, opts.Tests = "flat", crr("crr")
	list, err := Measure(ctx, opts, []Scenario{
		sockets("4", 4, 1), sockets("10000", 10_000, 1), sockets("100000", 100_000, 1),
		sockets("5000_backends", 4, 5000),
	})
	if err != nil {
		return nil, err
	}
	list = list[1:]
	for i := range list {
		name, _ := strings.CutSuffix(strings.TrimPrefix(list[i].Name, "flat/"), "/crr")
		list[i].Name = "service/crr_flat_" + name
	}
	return list, nil
}
