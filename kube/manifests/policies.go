package manifests

import (
	"errors"
	"fmt"
	"time"

	"myelin/policy"
	"myelin/policy/parse"
)

// ReadPolicies reads a file of policies and CiliumCIDRGroups alone. Rows have
// name as their source. The error is all that is wrong with the file, by object
// and field; also that there are other objects, or none.
func ReadPolicies(data []byte, name string,
	now time.Time) (policies []*policy.Object, groups []*policy.Group, err error) {
	c, _ := read(data, name, now, nil)
	var errs []error
	for _, p := range c.problems {
		errs = append(errs, p)
	}
	for _, d := range c.docs {
		switch row := d.row.(type) {
		case *policy.Object:
			policies = append(policies, row)
		case *policy.Group:
			groups = append(groups, row)
		case nil: // refused: among the problems
		default:
			errs = append(errs, fmt.Errorf("%s: %s: is no policy and no %s", name, d.key, parse.GroupKind))
		}
	}
	for kind := range c.unused {
		errs = append(errs, fmt.Errorf("%s: %s: is no policy and no %s", name, kind, parse.GroupKind))
	}
	if len(policies)+len(groups)+len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%s: there is no object in it", name))
	}
	return policies, groups, errors.Join(errs...)
}
