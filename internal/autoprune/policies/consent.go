package policies

import (
	"slices"

	"github.com/purser-registry/purser/internal/policy"
)

// Everything, among the confirmed codes of a policy, says that nobody asks for confirmations of
// it: it was saved by a client that knows none, such as one of Quay's.
const Everything policy.WarningCode = "*"

// Unconfirmed returns those of the warnings whose codes aren't among the confirmed ones.
func Unconfirmed(list []policy.Warning, confirmed []policy.WarningCode) (left []policy.Warning) {
	if slices.Contains(confirmed, Everything) {
		return nil
	}
	for _, w := range list {
		if !slices.Contains(confirmed, w.Code) {
			left = append(left, w)
		}
	}
	return left
}

// Consent is what a client that saves or deletes a policy says to warnings.
type Consent struct {
	Warnings []policy.Warning // that there are, for the audit log
	// Confirmed are the codes that were confirmed. Nil: the client asks nobody, and Everything is.
	Confirmed []policy.WarningCode
}

// codes returns the codes as a policy stores them.
func (c Consent) codes() []policy.WarningCode {
	if c.Confirmed == nil {
		return []policy.WarningCode{Everything}
	}
	return c.Confirmed
}

// replaces returns the codes that a policy stores when it is saved again; nil: those that it has. They
// stay if the policy is the same and nobody was asked.
func (c Consent) replaces(same bool) []policy.WarningCode {
	if same && c.Confirmed == nil {
		return nil
	}
	return c.codes()
}

// detail adds the warnings to the detail of an entry of the audit log.
func (c Consent) detail(detail map[string]any) map[string]any {
	if len(c.Warnings) > 0 {
		detail["warnings"] = c.Warnings
	}
	return detail
}
