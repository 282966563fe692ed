package reference

import (
	"path"
	"strings"

	"myelin/policy/ciliumv2"
)

// ciliumName says whether the peer's address has a name that the subject has learnt and that is asked for; empty: none.
// Pods and nodes are selected by no name.
func (w *World) ciliumName(f flow, of ciliumv2.FQDN) string {
	if !f.peer.outside() {
		return ""
	}
	for _, name := range w.Names[f.subject.addr][f.peer.addr] {
		if of.MatchName != "" && bare(of.MatchName) == bare(name) ||
			of.MatchPattern != "" && matchesPattern(bare(of.MatchPattern), bare(name)) {
			return "name"
		}
	}
	return ""
}

func bare(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// matchesPattern compares label by label: a "*" is any part of one, "**" as the first one or more of them, and "*"
// alone is any name.
func matchesPattern(pattern, name string) bool {
	if strings.Trim(pattern, "*") == "" {
		return true
	}
	want, have := strings.Split(pattern, "."), strings.Split(name, ".")
	if strings.HasPrefix(pattern, "**.") && len(have) > len(want) {
		have = have[len(have)-len(want):]
	}
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
