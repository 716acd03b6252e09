package uploadstore

import (
	"cmp"
	"slices"
)

// Merge sorts ranges and joins those that touch or overlap; empty and reversed
// ones are dropped. The result reuses the argument's memory.
func Merge(ranges []Range) []Range {
	ranges = slices.DeleteFunc(ranges, func(r Range) bool { return r.To <= r.From })
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	merged := ranges[:0]
	for _, r := range ranges {
		if last := len(merged) - 1; last >= 0 && r.From <= merged[last].To {
			merged[last].To = max(merged[last].To, r.To)
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// Contains reports whether merged ranges hold every byte of r.
func Contains(merged []Range, r Range) bool {
	i, found := slices.BinarySearchFunc(merged, r.From, func(m Range, from int64) int { return cmp.Compare(m.From, from) })
	if !found {
		i--
	}
	return r.To <= r.From || (i >= 0 && merged[i].From <= r.From && r.To <= merged[i].To)
}
