package agent

import (
	"path/filepath"

	"myelin/policy"
)

// lastGoodFile is in the run directory.
const lastGoodFile = "policy-last-good.json"

// keepPolicies reads the policies that were in force when the last agent ended, and
// keeps those that are in force from now on.
func (c *clusterSource) keepPolicies() *policy.LastGood {
	last := policy.OpenLastGood(filepath.Join(c.Config.Myelin.RunDir, lastGoodFile), c.DB, c.policies.tables, c.Log)
	c.Go("last-good-policies", last.Run)
	return last
}
