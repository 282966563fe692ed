package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bench/results"
)

const frontFlows = 16

// Forwarding measures packets a second through a node that balances load for a backend on another node: by XDP, by tc,
// and by the real kube-proxy in both of its modes, whose programs are in a folder. UDP datagrams of 16 flows in the
// shortest frames come in and leave by one wire, with the node's address in the place of the client's. The first
// processor does nothing but the balancing, from the wire's ring to the ring of the other end; the second one sends
// more than that can take, and counts and loses what comes back. Kernel 6.8 or later, two processors.
func Forwarding(ctx context.Context, opts Options, programs string) ([]results.Result, error) {
	fronts := []*front{
		newFront("xdp", opts.Family, &mine{xdp: true}),
		newFront("tc", opts.Family, &mine{}),
		newFront("kube-proxy-iptables", opts.Family, &proxied{kubeProxy{mode: "iptables", programs: programs}}),
		newFront("kube-proxy-nftables", opts.Family, &proxied{kubeProxy{mode: "nftables", programs: programs}}),
	}
	rates, err := ratesOf(ctx, opts, fronts)
	if err != nil {
		return nil, err
	}
	return ratios(opts.Family, rates), nil
}

// ForwardingIPIP is Forwarding by XDP and by tc with DSR by IPIP: the packets leave encapsulated.
func ForwardingIPIP(ctx context.Context, opts Options) ([]results.Result, error) {
	rates, err := ratesOf(ctx, opts, []*front{
		newFront("ipip-xdp", opts.Family, &mine{xdp: true, ipip: true}),
		newFront("ipip-tc", opts.Family, &mine{ipip: true}),
	})
	if err != nil {
		return nil, err
	}
	r := results.Result{Name: "xdp/pps_ipip_vs_tc" + opts.Family.suffix(), Value: median(rates[0]), Unit: "packets/s"}
	return []results.Result{r.Against(median(rates[1]))}, nil
}

// ratesOf are packets a second of each front and round.
func ratesOf(ctx context.Context, opts Options, fronts []*front) ([][]float64, error) {
	rates := make([][]float64, len(fronts))
	err := withFronts(ctx, fronts, func(players []*player) error {
		for round := range opts.Rounds {
			for i, f := range fronts {
				rate, err := f.rate(players[i], opts.Log)
				if err != nil {
					return fmt.Errorf("round %d: %w", round+1, err)
				}
				opts.Log.Info("measured", "round", round+1, "path", f.name, "value", rate, "unit", "packets/s")
				rates[i] = append(rates[i], rate)
			}
		}
		return nil
	})
	return rates, err
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
		if err := f.apart(ctx); err != nil {
			return err
		}
		frames, err := f.write(flows{count: frontFlows, first: begunPort}, "lb", fmt.Sprintf("udp %%d > %d", frontUDP))
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

// rate is packets a second of one run, which other processes can disturb a few times. Afterwards they get
// as much time again.
func (f *front) rate(p *player, log *slog.Logger) (value float64, err error) {
	const attempts = 10
	for range attempts {
		begin := time.Now()
		from, to, bad := f.saturated(p)
		if bad != nil {
			return 0, bad
		}
		time.Sleep(time.Since(begin))
		var share float64
		if value, share, err = rate(from, to); err == nil {
			log.Info("worked", "path", f.name, "share", share, "sent", to.sent-from.sent, "came", to.came-from.came)
			return value, nil
		}
		log.Info("measure again", "path", f.name, "because", err)
	}
	return 0, fmt.Errorf("%s, %d times: %w", f.name, attempts, err)
}

// ratios are those of the first to the others, in the order of Forwarding.
func ratios(family Family, rates [][]float64) []results.Result {
	var list []results.Result
	for i, other := range []string{"tc", "iptables", "nftables"} {
		r := results.Result{Name: "xdp/pps_vs_" + other + family.suffix(), Value: median(rates[0]), Unit: "packets/s"}
		list = append(list, r.Against(median(rates[i+1])))
	}
	return list
}
