package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
)

// checkClusterName wants what Cilium does: a DNS label of 1 to 32 characters.
func checkClusterName(s string) error {
	if len(s) > 32 {
		return fmt.Errorf("%q is longer than 32 characters", s)
	}
	for _, reason := range validation.IsDNS1123Label(s) {
		return fmt.Errorf("%q: %s", s, reason)
	}
	return nil
}
