package bigtcp

import (
	"context"
	"fmt"

	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"myelin/agent/feature"
	"myelin/endpoint"
	"myelin/route"
)

// Feature is BIG TCP as a feature of the agent. It starts before endpoints, so that the first pods get their sizes.
type Feature struct {
	*feature.Node
	// Routes are the node's, Endpoints its pods; called when the feature starts.
	Routes    func() *route.Routes
	Endpoints func() statedb.Table[*endpoint.Endpoint]

	bigTCP *BigTCP
}

// Feature returns the parts.
func (f *Feature) Feature() *feature.Feature {
	return &feature.Feature{
		Name: "BIG TCP", Start: f.start, Stop: f.stop, Counts: f.counts, Status: f.status, Commands: commands(),
	}
}

func (f *Feature) start(context.Context) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("read the kernel's version: %w", err)
	}
	var err error
	f.bigTCP, err = open(Params{
		DB: f.DB, Log: f.Log, Group: f.Group, IPv4: f.Config.BigTCP.IPv4 && f.Config.IPv4.Enabled,
		IPv6: f.Config.BigTCP.IPv6 && f.Config.IPv6.Enabled, Release: unix.ByteSliceToString(u.Release[:]),
		RunDir: f.Config.Myelin.RunDir, Devices: f.Routes().Devices, Endpoints: f.Endpoints(),
	})
	return err
}

// stop leaves the sizes as they are: the datapath continues without the agent.
func (f *Feature) stop() error {
	if f.bigTCP != nil {
		f.bigTCP.Close()
	}
	return nil
}

// WaitPod returns when both ends of a new pod's link have their sizes, or can't get them.
func (f *Feature) WaitPod(ctx context.Context, link string) { f.bigTCP.WaitPod(ctx, link) }

func (f *Feature) counts(txn statedb.ReadTxn) []feature.TableCount {
	return []feature.TableCount{feature.Count(txn, f.bigTCP.Devices, statusOf)}
}

// commands are those that show BIG TCP.
func commands() []feature.Command {
	return []feature.Command{{Name: "bigtcp", Short: "Inspect BIG TCP", Views: []feature.View{
		{Name: "devices", Table: "bigtcp-devices", Short: "List devices whose GSO and GRO sizes are set"},
	}}}
}
