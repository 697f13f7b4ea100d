package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/gc/events"
)

// Sentences returns the explanation as English sentences, the most important first.
func (e ManifestExplanation) Sentences() []string {
	var text []string
	tell := func(format string, args ...any) { text = append(text, fmt.Sprintf(format, args...)) }
	if e.Tags.Total.Rows > 0 {
		tell("kept: %s of %s %s to it", e.Tags.names("tag"), e.Repository, verb(e.Tags.Total, "points", "point"))
	}
	for _, h := range e.HeldBy {
		tell("kept: held by %s", h)
	}
	if e.RetainedUntil != nil {
		tell("kept until %s: %s", when(*e.RetainedUntil), e.RetainedBy)
	}
	kept := "kept"
	if e.Circle {
		tell("only a cycle refers to it: the manifests named here and this one refer to each other, and none of them has a tag")
		kept = "in the cycle"
	}
	for _, i := range e.Indexes.First {
		tell(kept+": index %s of %s contains it (%s)", i.Digest, e.Repository, i.Tags.names("tag"))
	}
	if more := e.Indexes.more(); more != "" {
		tell(kept+": %s more indexes of %s contain it", more, e.Repository)
	}
	if e.Subject != nil && e.Subject.Exists {
		tell(kept+": its subject %s is in %s", e.Subject.Digest, e.Repository)
	}
	if e.Circle && e.Review == nil && len(e.HeldBy) == 0 {
		tell("no review of it is planned; it will be deleted after the review of another manifest of the cycle")
	} else {
		text = append(text, e.Review.sentences(e.Fate, e.AsOf)...)
	}
	if e.Subject != nil && !e.Subject.Exists {
		tell("its subject %s is not in %s, so it does not keep this manifest", e.Subject.Digest, e.Repository)
	}
	if e.Referrers.Total.Rows > 0 {
		tell("%s to it: %s; when it is deleted, %s reviewed", e.Referrers.count("manifest refers", "manifests refer"),
			e.Referrers.list(), verb(e.Referrers.Total, "that is", "those are"))
	}
	if e.Missing.Total.Rows > 0 {
		tell("it lists %s that the repository doesn't have: %s", e.Missing.count("manifest", "manifests"), e.Missing.list())
	}
	if e.Children.Total.Rows > 0 {
		tell("it contains %s: %s; when it is deleted, %s reviewed", e.Children.count("manifest", "manifests"),
			e.Children.list(), verb(e.Children.Total, "that is", "those are"))
	}
	return text
}

// Sentences returns the explanation as English sentences, the most important first.
func (e BlobExplanation) Sentences() []string {
	var text []string
	tell := func(format string, args ...any) { text = append(text, fmt.Sprintf(format, args...)) }
	for _, use := range []struct {
		as string
		by Some[BlobUse]
	}{{"configuration", e.Configurations}, {"layer", e.Layers}} {
		for _, m := range use.by.First {
			if m.Repository == "" {
				tell("kept for now: manifest %s uses it as %s; the manifest's repository is deleted, and its rows are being removed", m.Digest, use.as)
				continue
			}
			trash := ""
			if m.InTrash {
				trash = "; the repository is in the trash, and can be restored until it is purged"
			}
			tell("kept: %s@%s uses it as %s%s", m.Repository, m.Digest, use.as, trash)
		}
		if more := use.by.more(); more != "" {
			tell("kept: %s more manifests use it as %s", more, use.as)
		}
	}
	text = append(text, e.Review.sentences(e.Fate, e.AsOf)...)
	if e.Unused.Total.Rows > 0 {
		tell("%s a link to it, and no manifest that uses it: %s; such a link does not keep the blob, and a review removes the link",
			e.Unused.count("repository has", "repositories have"), e.Unused.list())
	}
	if e.LostAt != nil {
		tell("its content is lost: at %s the store no longer had it; clients are told that there is no such blob, and the next push restores it",
			when(*e.LostAt))
	}
	tell("it has %s (%s bytes) and is stored as %s since %s", humanize.IBytes(uint64(e.Size)), humanize.Comma(e.Size), e.StorageKey, when(e.CreatedAt))
	return text
}

// sentences returns sentences about the planned review: when it will run at the time `now`,
// why, and what it will do to a manifest or blob with the fate `f`. If r is nil, no review
// is planned.
func (r *PlannedReview) sentences(f Fate, now time.Time) []string {
	if r == nil {
		if f == FateKept {
			return []string{"no review is planned; it will be reviewed when something that refers to it is deleted"}
		}
		return []string{"nothing keeps it and no review is planned, which should never happen: it stays until it is pushed or deleted; please report this"}
	}
	because := events.Because(r.Event)
	var text string
	switch {
	case r.FailedAt != nil:
		text = fmt.Sprintf("its review, because %s, failed %s; since %s it is not tried again, until \"purser gc retry\" makes it due",
			because, times(r.ReviewCount), when(*r.FailedAt))
	case r.ReviewAfter.After(now):
		text = fmt.Sprintf("will be reviewed at %s (in %s), because %s", when(r.ReviewAfter), Age(r.ReviewAfter.Sub(now)), because)
	default:
		text = fmt.Sprintf("is due for review since %s (for %s), because %s", when(r.ReviewAfter), Age(now.Sub(r.ReviewAfter)), because)
	}
	switch f {
	case FateKept:
		text += "; the review keeps it as long as something refers to it"
	case FateFailed:
		text += "; nothing keeps it"
	default:
		text += "; nothing keeps it, so it will be deleted"
	}
	list := []string{text}
	switch {
	case r.FailedAt != nil && r.LastError != "":
		list = append(list, "the last failure: "+r.LastError)
	case r.FailedAt == nil && r.ReviewCount > 0:
		list = append(list, fmt.Sprintf("its review has failed %s so far; the last failure: %s", times(r.ReviewCount), r.LastError))
	}
	return list
}

// names returns a noun and the first items of the list: "tags a, b and 3 more", "no tag".
// The parameter `one` is the noun in the singular.
func (s Some[T]) names(one string) string {
	switch s.Total.Rows {
	case 0:
		return "no " + one
	case 1:
		return fmt.Sprintf("%s %v", one, s.First[0])
	}
	return one + "s " + s.list()
}

// count returns the number of items and a noun: `one` in the singular, `many` in the
// plural.
func (s Some[T]) count(one, many string) string {
	return s.number(s.Total.Rows) + " " + verb(s.Total, one, many)
}

// number formats `n` with commas. If the list's count isn't exact, because the list has more
// than explainLimit items, number puts "more than" before it.
func (s Some[T]) number(n int64) string {
	if s.Total.Exact {
		return humanize.Comma(n)
	}
	return "more than " + humanize.Comma(n)
}

// list returns the first items of the list and how many items follow: "a, b and 3 more".
func (s Some[T]) list() string {
	parts := make([]string, len(s.First))
	for i, v := range s.First {
		parts[i] = fmt.Sprint(v)
	}
	if more := s.more(); more != "" {
		return strings.Join(parts, ", ") + " and " + more + " more"
	}
	if n := len(parts) - 1; n > 0 {
		return strings.Join(parts[:n], ", ") + " and " + parts[n]
	}
	return strings.Join(parts, "")
}

// more returns how many items the list has in addition to those in First, "" if none.
func (s Some[T]) more() string {
	n := s.Total.Rows - int64(len(s.First))
	if n <= 0 {
		return ""
	}
	return s.number(n)
}

func verb(n catalog.Count, one, many string) string {
	if n.Rows == 1 {
		return one
	}
	return many
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func when(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Age formats a duration with its two largest units: "3d4h", "3h12m", "12m5s", "5s".
func Age(d time.Duration) string {
	d = max(0, d).Round(time.Second)
	days, hours, minutes, seconds := int(d.Hours())/24, int(d.Hours())%24, int(d.Minutes())%60, int(d.Seconds())%60
	two := func(a int, unit string, b int, sub string) string {
		if b == 0 {
			return fmt.Sprint(a, unit)
		}
		return fmt.Sprint(a, unit, b, sub)
	}
	switch {
	case days > 0:
		return two(days, "d", hours, "h")
	case hours > 0:
		return two(hours, "h", minutes, "m")
	case minutes > 0:
		return two(minutes, "m", seconds, "s")
	}
	return fmt.Sprint(seconds, "s")
}
