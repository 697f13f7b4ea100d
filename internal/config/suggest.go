package config

import "strings"

// didYouMean returns the end of an error message about the unknown name `name`, such as ";
// did you mean X?". X is the name in `known` that is most similar. If none is similar, X is
// a known key in another group whose last part is the same. If there is no such key either,
// the end of the message refers to the documentation.
func didYouMean(name string, known []string) string {
	// Two letters of a short name may have changed places, which counts as two.
	best, bestDistance := "", 1+max(len(name)/3, min(len(name)/2, 2))
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		leaf := name[strings.LastIndexByte(name, '.')+1:]
		for _, k := range known {
			if strings.HasSuffix(k, "."+leaf) {
				best = k
				break
			}
		}
	}
	if best == "" {
		return "; docs/configuration.md lists all settings"
	}
	return "; did you mean " + best + "?"
}

// distance returns the Levenshtein distance of `a` and `b`: how many bytes must be
// inserted, removed or replaced at least to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diagonal
			if a[i-1] != b[j-1] {
				change++
			}
			diagonal = row[j]
			row[j] = min(change, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
