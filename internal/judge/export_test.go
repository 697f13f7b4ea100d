package judge

import "iter"

// PolicySetOf returns the set of the given indexes, each below [MaxPolicies].
func PolicySetOf(places ...int) PolicySet {
	var s PolicySet
	for _, i := range places {
		s = s.With(i)
	}
	return s
}

// Tags yields the elements of a slice.
func Tags(tags []Tag) iter.Seq2[Tag, error] {
	return func(yield func(Tag, error) bool) {
		for i := range tags {
			if !yield(tags[i], nil) {
				return
			}
		}
	}
}
