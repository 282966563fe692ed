package bench

import (
	"fmt"
	"slices"

	"myelin/bench/results"
)

// comparison makes results that compare paths of one way of measuring with each other.
type comparison struct {
	way      string
	family   Family
	measured []results.Result
	list     []results.Result
}

// add compares a path with another one by a test, if both were measured. Names of IPv6 get an ending.
func (c *comparison) add(test, path, of, name string) {
	if c.family == IPv6 {
		name += "_v6"
	}
	c.compare(test, path, of, name)
}

func (c *comparison) compare(test, path, of, name string) {
	find := func(path string) (r results.Result, ok bool) {
		i := slices.IndexFunc(c.measured, func(r results.Result) bool {
			return r.Name == fmt.Sprintf("%s/%s%s/%s", c.way, path, c.family.suffix(), test)
		})
		if i < 0 {
			return r, false
		}
		return c.measured[i], true
	}
	r, ok := find(path)
	base, known := find(of)
	if !ok || !known {
		return
	}
	r.Name = name
	c.list = append(c.list, r.Against(base.Value))
}

// FlowRatios compares, of what one way of measuring found, pods whose agents record flows with those whose agents do
// not.
func FlowRatios(way string, family Family, measured []results.Result) []results.Result {
	c := comparison{way: way, family: family, measured: measured}
	for _, test := range []string{"rr", "crr"} {
		c.add(test, "veth-hubble", "veth", "flow/"+test+"_on_vs_off")
	}
	return c.list
}
