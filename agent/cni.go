package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/cilium/hive/job"

	"myelin/agent/feature"
	"myelin/cni"
)

func (a *agent) cniFeature() *feature.Feature {
	return &feature.Feature{Name: "CNI", Start: a.startCNI, Checks: cni.Checks()}
}

// startCNI lets requests through that need all parts.
func (a *agent) startCNI(ctx context.Context) error {
	a.server.cni.real.Store(cni.NewServer(a.Log, a.endpoints.manager, a.own.cniStatus))
	if a.Config.LoadBalancer.Standalone {
		a.progress.opens()
		return a.server.open()
	}
	opened, err := cni.ReplayDeletes(ctx, a.Log, a.Config.Myelin.RunDir, a.endpoints.manager, func() error {
		a.progress.opens()
		return a.server.open()
	})
	if !opened {
		return err
	}
	if err != nil {
		a.Log.Error("some queued deletions failed and stay queued", "error", err)
	}
	if err := cni.WriteConflist(a.Config.CNI.ConfPath, a.server.socket()); err != nil {
		return err
	}
	if a.Config.CNI.Exclusive {
		a.startExclusive()
	}
	return nil
}

// excludeEvery is how often the agent looks for configurations of other networks
// that have come since.
const excludeEvery = 10 * time.Second

// startExclusive puts other networks' configurations aside, now and when they come.
func (a *agent) startExclusive() {
	said := ""
	exclude := func() {
		aside, err := cni.Exclude(a.Config.CNI.ConfPath)
		for _, name := range aside {
			a.Log.Warn("another network's CNI configuration is put aside (cni.exclusive)", "file",
				filepath.Join(a.Config.CNI.ConfPath, name))
		}
		if err == nil {
			said = ""
		} else if said != err.Error() {
			said = err.Error()
			a.Log.Error("another network's CNI configuration stays (cni.exclusive)", "error", err)
		}
	}
	exclude()
	a.Group.Add(job.Timer("cni-exclusive", func(context.Context) error {
		exclude()
		return nil
	}, excludeEvery))
}
