package judge

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

const (
	// MaxScopePolicies is the largest number of policies that one namespace, one
	// repository, or the registry may have.
	MaxScopePolicies = MaxPolicies / 2
	// MaxPolicies is how many can apply to one repository (see [Combine]).
	MaxPolicies = 64

	// DefaultMaxBehind is the default of [PullRecord.MaxBehind]: if the statistics lag
	// further behind the pulls, last_pulled policies select nothing.
	DefaultMaxBehind = time.Hour

	// DefaultMaxGroups is the default of [Rules.MaxGroups].
	DefaultMaxGroups = 100_000

	// Unreadable begins the message about a policy that can't be read.
	Unreadable = "it can't be read by this version: "
)

// Applied is a policy that applies to a repository, and the scope that it belongs to.
type Applied struct {
	ID     string // the policy's uuid
	Scope  policy.Scope
	Policy policy.Policy
	// Bound restricts a policy that frees bytes; nil: no restriction.
	Bound *FreeBound
	// RuleVersion is the policy's version since which it selects what it selects.
	RuleVersion int64
	// Everywhere marks the default policy of the configuration, which applies in a
	// namespace even if the namespace has its own policies.
	Everywhere bool
	// Problem says why this version of the program can't read the policy, which is then the
	// zero value and selects nothing. Counts says that the unreadable policy is certainly a
	// number_of_tags or max_bytes policy. Any other unreadable policy might have to select tags
	// before these policies count; therefore the repository's number_of_tags and max_bytes
	// policies then select nothing. MayKeep says that the unreadable policy may have keep rules; no
	// policy then selects any tag.
	Problem         string
	Counts, MayKeep bool
	// ActiveFrom is when the policy's grace period ends; nil: it has none. With a grace period,
	// the policy also waits until it is Announced.
	ActiveFrom *time.Time
	Announced  bool
	// Excepted says that the policy is the namespace's or the registry's, and that the repository is
	// an exception: the policy selects nothing. Its keep rules and its least number count nevertheless,
	// so that an exception makes no policy delete more.
	Excepted bool
	// Capped is why the policy waits because of its cap; "" if it doesn't.
	Capped string
	// Unreported is why the policy rests without the reporters that it requires, and Unconfirmed
	// why it rests until somebody confirms its warnings; "" if it doesn't.
	Unreported, Unconfirmed string
	// Uncovered is until when the policy deletes nothing, because another policy or a keep rule was
	// taken away; zero: it may.
	Uncovered time.Time
}

// FreeName is the id of the policy of a plan to free bytes, and the policy of exemptions from freeing.
const FreeName = "free"

// ExemptBy returns whether the policy doesn't select a tag of which an exemption names a policy and its
// version. It does so from its next rule on. What was restored once isn't deleted to free bytes.
func (a *Applied) ExemptBy(policy string, version int64) bool {
	return a.ID == policy && a.RuleVersion <= version || a.Bound != nil || a.ID == FreeName
}

// Combine returns the policies that apply to a repository. They are the repository's own
// policies, together with those of its namespace or, if the namespace has none, with the
// registry's defaults. A default with Everywhere set applies even if the namespace has
// policies; it is left out if there would be more than MaxPolicies. `off` says that the
// namespace refuses all defaults.
func Combine(defaults, namespace, repository []Applied, off bool) []Applied {
	if off {
		defaults = nil
	}
	own := len(namespace) > 0
	full := len(namespace)+len(repository) >= MaxPolicies || !own && len(defaults)+len(repository) > MaxPolicies
	defaults = slices.DeleteFunc(slices.Clone(defaults), func(a Applied) bool { return a.Everywhere && full || !a.Everywhere && own })
	return slices.Concat(defaults, namespace, repository)
}

// Protection is a rule that protects tags from deletion: those whose names match its
// pattern.
type Protection struct {
	ID      string
	Pattern oci.TagPattern
	Problem string // why the pattern can't be read; the rule then protects every tag
}

// PullRecord says how far pull statistics can be trusted.
type PullRecord struct {
	// Since is when pull statistics began; the zero value says that there are none.
	Since time.Time
	// Behind is the age of the oldest pull that the statistics don't include yet.
	Behind time.Duration
	// Unknown says why last-used times can't be determined at all; "" if they can.
	Unknown string
	// MaxBehind is the limit on Behind; 0 means DefaultMaxBehind.
	MaxBehind time.Duration
}

// problem returns why the pull statistics can't tell which tags were used since `cutoff`;
// "" if they can. `age` is the policy's age, for the text: cutoff is this long ago.
func (p PullRecord) problem(age policy.Age, cutoff time.Time) string {
	if missing := p.Missing(); missing != "" {
		return missing
	}
	if !p.Since.Before(cutoff) {
		return fmt.Sprintf("pull statistics began at %s, no more than %s ago", Stamp(p.Since), age)
	}
	return ""
}

// Missing returns why the pull statistics tell nothing about the last use of tags; "" if they do.
func (p PullRecord) Missing() string {
	limit := cmp.Or(p.MaxBehind, DefaultMaxBehind)
	switch {
	case p.Unknown != "":
		return p.Unknown
	case p.Since.IsZero():
		return "there are no pull statistics yet"
	case p.Behind > limit:
		return fmt.Sprintf("pull statistics are %s behind, more than %s", p.Behind.Round(time.Second), limit)
	}
	return ""
}

// Rules are the policies, protection rules and statistics by which a repository's tags are
// judged.
type Rules struct {
	Now        time.Time
	Policies   []Applied // at most MaxPolicies
	Protection []Protection
	Pulls      PullRecord
	// IgnoreWaits lets policies that wait delete tags, but not those with the mode observe.
	IgnoreWaits bool
	// MaxGroups is how many groups the policies by number with groups, and the keep rules with groups or
	// versions, may have together; 0 means DefaultMaxGroups. A group takes about 200 bytes while tags
	// are judged. If there are more, such policies select nothing, and such keep rules keep what is in
	// a group.
	MaxGroups int
	// Would lets the policies with the mode observe delete tags, and policies that wait. The
	// verdict then says what would be deleted.
	Would bool
}

// validate returns an error for rules that are incomplete or too many, which only a mistake
// of the caller can cause.
func (r *Rules) validate() error {
	if r.Now.IsZero() {
		return errors.New("judge: rules without a time")
	}
	if len(r.Policies) > MaxPolicies {
		return fmt.Errorf("judge: %d policies apply to one repository and at most %d may", len(r.Policies), MaxPolicies)
	}
	for _, applied := range r.Policies {
		if applied.Policy.Method == "" && applied.Problem == "" {
			return fmt.Errorf("judge: policy %q is the zero policy", applied.ID)
		}
	}
	for _, protection := range r.Protection {
		if protection.Pattern.IsZero() {
			return fmt.Errorf("judge: protection rule %q has no pattern", protection.ID)
		}
	}
	return nil
}

// Protects returns whether a protection rule matches the name of a tag.
func (r *Rules) Protects(tag string) bool { return protectionOf(r.Protection, tag) != nil }

// PolicySet is a set of policies by their indexes in [Rules.Policies].
type PolicySet uint64

// With returns the set with the policy with index i, which is below [MaxPolicies].
func (s PolicySet) With(i int) PolicySet { return s | 1<<i }

// Has returns whether the policy with index i is in the set.
func (s PolicySet) Has(i int) bool { return s>>i&1 == 1 }

// first returns the lowest index, -1 for the empty set.
func (s PolicySet) first() int {
	if s == 0 {
		return -1
	}
	return bits.TrailingZeros64(uint64(s))
}

// All yields the indexes in ascending order.
func (s PolicySet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for rest := s; rest != 0; rest &= rest - 1 {
			if !yield(rest.first()) {
				return
			}
		}
	}
}
