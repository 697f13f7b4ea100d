package pullstats

import "strconv"

// Display formats a count for people: the number itself below 1,000; thousands with one
// decimal below 10,000, cut and not rounded (1K, 1.7K); above that the range that the count
// has reached: 10K+, 50K+, 100K+, 500K+ or 1M+. A negative count is formatted as 0.
func Display(count int64) string {
	switch {
	case count >= 1_000_000:
		return "1M+"
	case count >= 500_000:
		return "500K+"
	case count >= 100_000:
		return "100K+"
	case count >= 50_000:
		return "50K+"
	case count >= 10_000:
		return "10K+"
	case count < 1000:
		return strconv.FormatInt(max(count, 0), 10)
	case count%1000 < 100:
		return strconv.FormatInt(count/1000, 10) + "K"
	}
	return strconv.FormatInt(count/1000, 10) + "." + strconv.FormatInt(count%1000/100, 10) + "K"
}
