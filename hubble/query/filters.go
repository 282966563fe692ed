// Package query makes requests for flows of what people write on a command
// line, by the names and the meaning that Hubble's command line has.
package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/proto"
)

// Filters are filters of flows in the order in which they were given. Values of one name are alternatives, different
// names must match together. The zero value matches all flows.
type Filters struct {
	allow, deny list
	not         bool // the next filter is one of deny
}

// list are filters that are all allowed, or all denied. A filter that may match at either end of a flow needs two
// lists of conditions: first with those of the source, second with those of the destination.
type list struct {
	first, second          flowpb.FlowFilter
	source, target, either []string // namespaces, for names of pods and Services that have none
	given                  []string // names
}

// Not makes the next filter one that flows must not match.
func (f *Filters) Not() error {
	if f.not {
		return errors.New("--not follows --not: it is before each filter that is to be reversed")
	}
	f.not = true
	return nil
}

// Add adds a filter by the name of its flag, without dashes. The error names the flag and the value.
func (f *Filters) Add(name, value string) error {
	to := &f.allow
	if f.not {
		to, f.not = &f.deny, false
	}
	i := slices.IndexFunc(Fields(), func(field Field) bool { return field.Name == name })
	if i < 0 {
		return fmt.Errorf("--%s: there is no such filter", name)
	}
	field := Fields()[i]
	if err := to.conflict(name); err != nil {
		return err
	}
	if err := field.add(to, value); err != nil {
		return fmt.Errorf("--%s %s: %w", name, value, err)
	}
	if !slices.Contains(to.given, name) {
		to.given = append(to.given, name)
	}
	return nil
}

// conflict returns an error if a filter excludes one that was given before: --pod is --from-pod or --to-pod.
func (l *list) conflict(name string) error {
	plain, side := name, false
	for _, prefix := range []string{"from-", "to-"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			plain, side = rest, true
		}
	}
	for _, other := range l.given {
		if side && other == plain || !side && (other == "from-"+name || other == "to-"+name) {
			return fmt.Errorf("--%s and --%s exclude each other", other, name)
		}
	}
	return nil
}

// Lists returns the filters of which a flow must match one, and those of which it must match none.
func (f *Filters) Lists() (allow, deny []*flowpb.FlowFilter, err error) {
	if f.not {
		return nil, nil, errors.New("--not is not followed by a filter")
	}
	return f.allow.filters(), f.deny.filters(), nil
}

func (l *list) filters() []*flowpb.FlowFilter {
	if len(l.given) == 0 {
		return nil
	}
	first, second := proto.CloneOf(&l.first), proto.CloneOf(&l.second)
	for _, filter := range []*flowpb.FlowFilter{first, second} {
		if len(l.source) > 0 {
			filter.SourcePod, filter.SourceService = within(l.source, filter.SourcePod, filter.SourceService)
		}
		if len(l.target) > 0 {
			filter.DestinationPod, filter.DestinationService = within(l.target, filter.DestinationPod,
				filter.DestinationService)
		}
	}
	if len(l.either) > 0 {
		first.SourcePod, first.SourceService = within(l.either, first.SourcePod, first.SourceService)
		second.DestinationPod, second.DestinationService = within(l.either, second.DestinationPod,
			second.DestinationService)
	}
	if proto.Equal(first, second) {
		return []*flowpb.FlowFilter{first}
	}
	return []*flowpb.FlowFilter{first, second}
}

// within qualifies the names of pods and Services that have no namespace with each of the given namespaces. Without
// names it selects all pods of the namespaces. An empty namespace stands for any.
func within(namespaces, pods, services []string) (allPods, allServices []string) {
	if len(pods) == 0 && len(services) == 0 {
		pods = []string{""}
	}
	put := func(names []string) (all []string) {
		for _, name := range names {
			if strings.Contains(name, "/") {
				all = append(all, name)
				continue
			}
			for _, ns := range namespaces {
				all = append(all, ns+"/"+name)
			}
		}
		return all
	}
	return put(pods), put(services)
}
