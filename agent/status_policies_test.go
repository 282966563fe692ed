package agent

import (
	"testing"

	"myelin/policy"
)

// Words of cilium_policy_endpoint_enforcement_status.
func TestEnforcement(t *testing.T) {
	for want, r := range map[string]*policy.Realised{
		"none":         {},
		"ingress":      {Enforced: [2]bool{policy.Ingress: true}},
		"egress":       {Enforced: [2]bool{policy.Egress: true}},
		"both":         {Enforced: [2]bool{true, true}},
		"audit-egress": {Enforced: [2]bool{policy.Egress: true}, Audit: true},
		"audit-both":   {Enforced: [2]bool{true, true}, Audit: true},
	} {
		if got := enforcement(r); got != want {
			t.Errorf("%+v: %s, want %s", r, got, want)
		}
	}
}
