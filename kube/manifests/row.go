package manifests

import (
	"myelin/cluster"
	"myelin/policy"
)

// equal reports whether two rows of any kind say the same.
func equal(a, b any) bool {
	switch a := a.(type) {
	case *cluster.Node:
		return same(a, b, a.Equal)
	case *cluster.Namespace:
		return same(a, b, a.Equal)
	case *cluster.Pod:
		return same(a, b, a.Equal)
	case *cluster.Service:
		return same(a, b, a.Equal)
	case *cluster.EndpointSlice:
		return same(a, b, a.Equal)
	case *cluster.Secret:
		return same(a, b, a.Equal)
	case *policy.Object:
		return same(a, b, a.Equal)
	case *policy.Group:
		return same(a, b, a.Equal)
	}
	return false
}

func same[T any](_ *T, b any, equal func(*T) bool) bool {
	row, ok := b.(*T)
	return ok && row != nil && equal(row)
}

// sameObject reports whether two rows differ at most in the file.
func sameObject(a, b any) bool { return equal(anywhere(a), anywhere(b)) }

// anywhere is a row without the place that it was read from.
func anywhere(row any) any {
	switch row := row.(type) {
	case *cluster.Node:
		return withSource(row, func(n *cluster.Node) { n.Source = "" })
	case *cluster.Namespace:
		return withSource(row, func(n *cluster.Namespace) { n.Source = "" })
	case *cluster.Pod:
		return withSource(row, func(p *cluster.Pod) { p.Source = "" })
	case *cluster.Service:
		return withSource(row, func(s *cluster.Service) { s.Source = "" })
	case *cluster.EndpointSlice:
		return withSource(row, func(s *cluster.EndpointSlice) { s.Source = "" })
	case *cluster.Secret:
		return withSource(row, func(s *cluster.Secret) { s.Source = "" })
	case *policy.Object:
		return row.Anywhere()
	case *policy.Group:
		return withSource(row, func(g *policy.Group) { g.Source = "" })
	}
	return nil
}

func withSource[T any](row *T, set func(*T)) *T {
	c := *row
	set(&c)
	return &c
}
