package oracle

import "slices"

// maxReplays bounds how often attempts are sent again to find the fewest.
const maxReplays = 60

// Shrink finds few attempts that end with the given one and by which a violation by it happens again; nil, if it
// doesn't happen again at all. Those that were made before are in their order in history.
func Shrink(history []*Attempt, last *Attempt, again func([]*Attempt) bool) []*Attempt {
	if again([]*Attempt{last}) {
		return []*Attempt{last}
	}
	end := slices.Index(history, last)
	if end < 0 || !again(history[:end+1]) {
		return nil
	}
	list := slices.Clone(history[:end])
	replays := 0
	for part := (len(list) + 1) / 2; part > 0 && len(list) > 0; part /= 2 {
		for off := 0; off < len(list) && replays < maxReplays; {
			replays++
			less := slices.Delete(slices.Clone(list), off, min(off+part, len(list)))
			if again(append(slices.Clone(less), last)) {
				list = less
			} else {
				off += part
			}
		}
	}
	return append(list, last)
}
