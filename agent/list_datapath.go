package agent

import (
	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/drop"
)

func (d *datapath) lists() map[string]feature.List {
	return map[string]feature.List{
		"drops": {Header: (*drop.Row)(nil).TableHeader(), Each: d.eachCounter},
		"maps":  {Header: (*bpf.Usage)(nil).TableHeader(), Each: d.eachMap},
	}
}

func (d *datapath) eachCounter(yield func(tableRow) bool) error {
	list, err := drop.Counters{Cpus: d.Datapath.Cpus}.Read()
	for _, c := range list {
		if !yield(c.Row()) {
			break
		}
	}
	return err
}

func (d *datapath) eachMap(yield func(tableRow) bool) error {
	list, err := d.usages.Read()
	for _, u := range list {
		if !yield(u) {
			break
		}
	}
	return err
}

// commands are those that show maps.
func (*datapath) commands() []feature.Command {
	return []feature.Command{
		{Name: "map", Short: "Inspect BPF maps", Views: []feature.View{
			{Name: "list", Short: "List maps with their entries and memory", Table: "maps"},
			{Name: "dump", Short: "Show the entries of a map", Table: "map", By: "NAME", Prefix: true},
		}},
	}
}
