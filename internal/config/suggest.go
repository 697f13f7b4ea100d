package config

import "strings"

// didYouMean returns "; did you mean X?" for the known name nearest to name, ""
// when none is near. A key that is known within another group is near, however
// it was reached.
func didYouMean(name string, known []string) string {
	best, bestDistance := "", len(name)/3+1
	for _, k := range known {
		if d := distance(name, k); d < bestDistance {
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

// distance is how many bytes must be put in, taken out or changed to make a
// into b (Levenshtein).
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
