package agent

import (
	"myelin/bpf"
	"myelin/drop"
	"myelin/feature"
	"myelin/flow"
)

func (d *datapath) lists() map[string]feature.List {
	return map[string]feature.List{
		"drops": {Header: (*drop.Row)(nil).TableHeader(), Each: d.eachCounter},
		"maps":  {Header: (*bpf.Usage)(nil).TableHeader(), Each: d.eachMap},
	}
}

func (d *datapath) flowLists() map[string]feature.List {
	return map[string]feature.List{
		"flows": {Header: (*flow.Flow)(nil).TableHeader(), Each: d.eachFlow},
		"paths": {Header: (*flow.Path)(nil).TableHeader(), Each: d.eachPath},
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

func (d *datapath) eachFlow(yield func(tableRow) bool) error {
	clock, err := d.clock()
	if err != nil {
		return err
	}
	return flow.List(d.Datapath, d.names(), clock, func(f *flow.Flow) bool { return yield(f) })
}

func (d *datapath) eachPath(yield func(tableRow) bool) error {
	clock, err := d.clock()
	if err != nil {
		return err
	}
	return flow.Paths(d.Datapath, d.names(), clock, func(p *flow.Path) bool { return yield(p) })
}

func (d *datapath) clock() (flow.Clock, error) {
	settings, err := d.Datapath.Settings()
	if err != nil {
		return flow.Clock{}, err
	}
	return flow.ReadClock(settings.Hz)
}
