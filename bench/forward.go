package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bench/results"
)

const (
	frontFlows = 16
	warmFrames = 4096    // sent before each run
	runFrames  = 1 << 17 // few enough that the run ends before the kernel gives its processor to others
)

// Forwarding measures packets a second through a node that balances load for a backend on another node: by XDP, by tc, and by the real kube-proxy in
// both of its modes, whose programs are in a folder; and as many as there are when a program only turns frames around. UDP datagrams of 16 flows in the shortest frames come in and leave by one wire, with the node's
// address in the place of the client's. All is done on one processor, the sending too, so ratios are less than those of the balancing alone.
// Kernel 6.6 or later.
func Forwarding(ctx context.Context, opts Options, programs string) (list []results.Result, err error) {
	fronts := []*front{
		newFront("xdp", opts.Family, &mine{xdp: true}),
		newFront("tc", opts.Family, &mine{}),
		newFront("kube-proxy-iptables", opts.Family, &proxied{kubeProxy{mode: "iptables", programs: programs}}),
		newFront("kube-proxy-nftables", opts.Family, &proxied{kubeProxy{mode: "nftables", programs: programs}}),
		newFront("turn", opts.Family, &turn{}),
	}
	rates := make([][]float64, len(fronts))
	err = withFronts(ctx, fronts, func(players []*player) error {
		for round := range opts.Rounds {
			for i, f := range fronts {
				rate, err := f.rate(players[i])
				if err != nil {
					return fmt.Errorf("round %d: %w", round+1, err)
				}
				opts.Log.Info("measured", "round", round+1, "path", f.name, "value", rate, "unit", "packets/s")
				rates[i] = append(rates[i], rate)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return ratios(opts.Family, rates), nil
}

func newFront(name string, family Family, by balancing) *front {
	return &front{kernelPath: kernelPath{name: "front-" + name}, family: family, balancing: by}
}

// withFronts calls fn with a player for each front, while they stand.
func withFronts(ctx context.Context, fronts []*front, fn func([]*player) error) (err error) {
	var players []*player
	defer func() {
		for _, p := range players {
			err = errors.Join(err, p.close())
		}
		for _, f := range fronts {
			err = errors.Join(err, f.down(context.WithoutCancel(ctx)))
		}
	}()
	for _, f := range fronts {
		if err := f.stand(ctx); err != nil {
			return fmt.Errorf("set up %s: %w", f.name, err)
		}
		from, to := "client", "lb"
		if _, ok := f.balancing.(*turn); ok {
			from, to = "node", "backend"
		}
		frames, err := f.write(frontFlows, 40000, from, to, fmt.Sprintf("udp %%d > %d", frontUDP))
		if err != nil {
			return err
		}
		p, err := newPlayer(ebpf.ProgramSpec{Type: ebpf.XDP}, frames, ending(xdpTX))
		if err != nil {
			return err
		}
		players = append(players, p)
	}
	return fn(players)
}

// rate is packets a second of one run. A processor that did nothing else owes others as much time again.
func (f *front) rate(p *player) (float64, error) {
	if _, _, err := f.send(p, warmFrames); err != nil {
		return 0, err
	}
	came, took, err := f.send(p, runFrames)
	if err != nil {
		return 0, err
	}
	time.Sleep(took)
	if came < runFrames*99/100 {
		return 0, fmt.Errorf("%s: %d of %d packets came to the backend", f.name, came, runFrames)
	}
	return float64(came) / took.Seconds(), nil
}

// ratios are those of the first to the others, in the order of Forwarding.
func ratios(family Family, rates [][]float64) []results.Result {
	var list []results.Result
	for i, other := range []string{"tc", "iptables", "nftables", "turn"} {
		r := results.Result{Name: "xdp/pps_vs_" + other + family.Suffix(), Value: median(rates[0]), Unit: "packets/s"}
		list = append(list, r.Against(median(rates[i+1])))
	}
	return list
}
