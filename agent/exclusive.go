package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/cilium/hive/job"

	"myelin/cni"
)

// excludeEvery is how often the agent looks for configurations of other networks
// that have come since.
const excludeEvery = 10 * time.Second

// startExclusive puts other networks' configurations aside, now and when they come.
func (a *Agent) startExclusive() {
	said := ""
	exclude := func() {
		aside, err := cni.Exclude(a.config.CNI.ConfPath)
		for _, name := range aside {
			a.log.Warn("another network's CNI configuration is put aside (cni.exclusive)", "file", filepath.Join(a.config.CNI.ConfPath, name))
		}
		if err == nil {
			said = ""
		} else if said != err.Error() {
			said = err.Error()
			a.log.Error("another network's CNI configuration stays (cni.exclusive)", "error", err)
		}
	}
	exclude()
	a.group.Add(job.Timer("cni-exclusive", func(context.Context) error {
		exclude()
		return nil
	}, excludeEvery))
}
