package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// Quoted returns a pattern in quotation marks, as it was written: unlike %q it doesn't double
// backslashes.
func Quoted(pattern any) string {
	return strings.ReplaceAll(strconv.Quote(fmt.Sprint(pattern)), `\\`, `\`)
}

// enumerated writes at least two texts as an enumeration.
func enumerated(texts []string) string {
	last := len(texts) - 1
	return strings.Join(texts[:last], ", ") + " and " + texts[last]
}

// Number writes a number of things.
func Number(n int64, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case what == "repository":
		return fmt.Sprintf("%d repositories", n)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
