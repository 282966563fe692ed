package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"myelin/bpf"
)

// wholePath is a socketsPath whose nodes forward by eBPF host routing and translate packets, too: what a node has that
// needs no kube-proxy.
type wholePath struct {
	socketsPath
	other *bpf.Datapath // the server's node's
	ended []func() error
}

// whole is pod→Service by all that takes kube-proxy's place, that Service being one of so many.
func whole(name string, services int) Scenario {
	w := &wholePath{socketsPath: *newSockets(name, services, 1)}
	w.settings = frontSettings()
	return w
}

func (w *wholePath) Setup(ctx context.Context, family Family) (Path, error) {
	path, err := w.socketsPath.Setup(ctx, family)
	if err != nil {
		return path, err
	}
	at, dir := family.addressing(), filepath.Join(w.dir, "b")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return path, err
	}
	if w.other, err = loadIn(dir, bpf.Options{Settings: at.withGateway(frontSettings())}, &w.ended); err != nil {
		return path, err
	}
	for i, d := range []*bpf.Datapath{w.balancer.datapath, w.other} {
		if err := w.join(ctx, d, at, i); err != nil {
			return path, fmt.Errorf("forward on node %d: %w", i+1, err)
		}
	}
	return path, nil
}

func (w *wholePath) Teardown(ctx context.Context) error {
	return errors.Join(end(&w.ended), w.socketsPath.Teardown(ctx))
}
