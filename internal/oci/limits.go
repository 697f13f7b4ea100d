package oci

import "fmt"

// LimitText is the text of a refusal to make more of something. `of` is whose they are, such as
// "namespace acme", `most` is how many there may be, and `setting` says that. wayOut says what the
// client itself can do.
func LimitText(of string, most int, what, setting, wayOut string) string {
	return fmt.Sprintf("%.100s may have %d %s, and has them already: %s, or ask the operator of the registry to raise the setting %s",
		of, most, what, wayOut, setting)
}
