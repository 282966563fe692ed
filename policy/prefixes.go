package policy

import (
	"net/netip"
	"slices"
)

// ShortList is how many prefixes a list may have to be known by what is in
// them, so that all rules that have the same one share it. Longer ones are
// known by their place: then one prefix more or less is a small change.
const ShortList = 64

// Canonical returns the prefixes masked, sorted and each once: the same slice where
// they are so already.
func Canonical(list []netip.Prefix) []netip.Prefix {
	if isTidy(list) {
		return list
	}
	out := slices.Clone(list)
	for i, p := range out {
		out[i] = p.Masked()
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// SortLong sorts a list that is so long that whoever compiles it should not be
// the one that sorts it; short ones stay as they were written.
func SortLong(list []netip.Prefix) []netip.Prefix {
	if len(list) <= ShortList {
		return list
	}
	return Canonical(list)
}

func isTidy(list []netip.Prefix) bool {
	for i, p := range list {
		if !p.IsSingleIP() && p != p.Masked() || i > 0 && list[i-1].Compare(p) >= 0 {
			return false
		}
	}
	return true
}
