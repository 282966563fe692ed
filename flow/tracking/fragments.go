package tracking

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/flow"
)

// fragments is the usage of the table of first fragments. Its entries belong to pod links, which are counted here: the
// datapath keeps no count, since each link has room for a fixed number of them.
func fragments(d *bpf.Datapath) (flow.Usage, error) {
	u := flow.Usage{Max: int(d.Fragments.MaxEntries())}
	links := map[uint32]int{}
	err := bpf.Each(d.Fragments, func(k *bpf.DatapathFragmentKey, _ *bpf.DatapathFragmentRow) bool {
		u.Entries++
		links[k.Ifindex]++
		return true
	})
	if err != nil {
		return u, fmt.Errorf("count fragments: %w", err)
	}
	delete(links, 0) // of wires
	for ifindex, n := range links {
		if n <= u.Most {
			continue
		}
		var link bpf.DatapathPodLink
		err := d.PodLinks.Lookup(ifindex, &link)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue // the pod is gone
		}
		if err != nil {
			return u, fmt.Errorf("look up pod link %d: %w", ifindex, err)
		}
		u.Slot, u.Most = link.Endpoint.Slot, n
	}
	return u, nil
}
