// Package filter compiles Hubble's flow filters.
package filter

import (
	"fmt"
	"slices"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Match reports whether a flow passes.
type Match func(*flowpb.Flow) bool

// Compile makes one filter of two lists: a flow passes if one of whitelist matches, or there is none, and none of
// blacklist does. Of a FlowFilter all fields that are set must match, and one of each field's values. The error has the
// gRPC code InvalidArgument, and names list and field. It returns nil where every flow passes.
func Compile(whitelist, blacklist []*flowpb.FlowFilter) (Match, error) {
	white, err := list("whitelist", whitelist)
	if err != nil {
		return nil, err
	}
	black, err := list("blacklist", blacklist)
	if err != nil {
		return nil, err
	}
	if white == nil && black == nil {
		return nil, nil
	}
	return func(f *flowpb.Flow) bool {
		return (white == nil || anyOf(white, f)) && !anyOf(black, f)
	}, nil
}

func list(name string, filters []*flowpb.FlowFilter) ([]Match, error) {
	var out []Match
	for i, f := range filters {
		c := compiler{}
		c.addresses(f)
		c.objects(f)
		c.packet(f)
		c.verdicts(f)
		c.layer7(f)
		c.others(f)
		if c.err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "%s[%d].%v", name, i, c.err)
		}
		out = append(out, c.match)
	}
	return out, nil
}

func anyOf(list []Match, f *flowpb.Flow) bool {
	return slices.ContainsFunc(list, func(m Match) bool { return m(f) })
}

// compiler collects the fields of a FlowFilter that are set.
type compiler struct {
	fields [][]Match
	err    error // the first one
}

func (c *compiler) match(f *flowpb.Flow) bool {
	for _, field := range c.fields {
		if !anyOf(field, f) {
			return false
		}
	}
	return true
}

// add adds a field of which one value must match.
func add[T any](c *compiler, name string, values []T, compile func(T) (Match, error)) {
	var field []Match
	for i, v := range values {
		m, err := compile(v)
		if err != nil {
			if c.err == nil {
				c.err = fmt.Errorf("%s[%d]: %w", name, i, err)
			}
			return
		}
		field = append(field, m)
	}
	if field != nil {
		c.fields = append(c.fields, field)
	}
}

// equal adds a field whose values are compared.
func equal[T comparable](c *compiler, name string, values []T, of func(*flowpb.Flow) T) {
	add(c, name, values, func(want T) (Match, error) {
		return func(f *flowpb.Flow) bool { return of(f) == want }, nil
	})
}
