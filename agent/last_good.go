package agent

import (
	"context"
	"path/filepath"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"myelin/policy"
)

// lastGoodFile is in the run directory.
const lastGoodFile = "policy-last-good.json"

// keepPolicies reads the policies that were in force when the last agent ended, and
// keeps those that are in force from now on.
func (a *Agent) keepPolicies() *policy.LastGood {
	last := policy.OpenLastGood(filepath.Join(a.config.Myelin.RunDir, lastGoodFile), a.db, a.policies, a.log)
	a.group.Add(job.OneShot("last-good-policies", func(ctx context.Context, _ cell.Health) error { return last.Run(ctx) }))
	return last
}
