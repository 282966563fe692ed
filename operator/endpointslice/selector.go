package endpointslice

import (
	"maps"
	"slices"

	"myelin/cluster"
)

// service is a Service with a selector, and the pods that it selects by name.
type service struct {
	row   *cluster.Service
	pods  map[string]*cluster.Pod
	at    label // where selectors have it
	fresh bool  // pods are not complete yet
}

// selects reports whether all labels of the selector are there.
func (s *service) selects(labels map[string]string) bool {
	for k, v := range s.row.Selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// label is one that objects of a namespace may have.
type label struct{ namespace, key, value string }

// selectors finds the Services that select a pod without a look at all of
// them: each is under one label of its selector.
type selectors map[label][]*service

// add puts s under the label that has the fewest others, so that one that all
// have in common doesn't collect them. The selector must not be empty.
func (x selectors) add(s *service) {
	first := true
	for _, k := range slices.Sorted(maps.Keys(s.row.Selector)) {
		at := label{s.row.Namespace, k, s.row.Selector[k]}
		if first || len(x[at]) < len(x[s.at]) {
			s.at, first = at, false
		}
	}
	x[s.at] = append(x[s.at], s)
}

func (x selectors) remove(s *service) {
	x[s.at] = slices.DeleteFunc(x[s.at], func(o *service) bool { return o == s })
	if len(x[s.at]) == 0 {
		delete(x, s.at)
	}
}

// selecting calls do for each Service that selects the pod, once.
func (x selectors) selecting(pod *cluster.Pod, do func(*service)) {
	for k, v := range pod.Labels {
		for _, s := range x[label{pod.Namespace, k, v}] {
			if s.selects(pod.Labels) {
				do(s)
			}
		}
	}
}
