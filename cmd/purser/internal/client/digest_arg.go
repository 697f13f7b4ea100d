package client

import (
	"context"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

// abbreviated is how lists and the audit log show a digest.
var abbreviated = regexp.MustCompile(`^(sha256|sha512):[0-9a-f]{6,}…?$`)

// digestTags is how many tags are looked at for a digest that is abbreviated.
const digestTags = 10_000

// wholeDigest returns the argument DIGEST of a command about a tag. It may be abbreviated, as "tag list"
// and "audit list" show it, if only one manifest is meant: of those to which a tag of the repository
// points, or, with `earlier`, those to which this tag points or pointed.
func wholeDigest(ctx context.Context, c *api.Client, repository, tag, text string, earlier bool) (string, error) {
	err := checkArg("DIGEST", text, checkDigest)
	if err == nil || !abbreviated.MatchString(text) {
		return text, err
	}
	begin := strings.TrimSuffix(text, "…")
	tags, more, err := api.Collect(digestTags, func(cursor string, n int) ([]tagView, string, error) {
		var page struct {
			Tags     []tagView `json:"tags"`
			NextPage string    `json:"next_page"`
		}
		q := (&nameFlags{}).query(cursor, n)
		if earlier {
			q = withTag(q, tag)
		}
		err := c.Get(ctx, api.Path("repository", repository, "tag"), q, &page)
		return page.Tags, page.NextPage, err
	})
	if err != nil {
		return "", err
	}
	var found []string
	for _, t := range tags {
		if strings.HasPrefix(t.Digest, begin) && !slices.Contains(found, t.Digest) {
			found = append(found, t.Digest)
		}
	}
	switch {
	case len(found) == 1 && !more:
		return found[0], nil
	case len(found) > 1:
		return "", command.Usagef("DIGEST: several begin with %s: %s", begin, strings.Join(found, ", "))
	case earlier:
		return "", command.Usagef("DIGEST: %s:%s never pointed to a manifest whose digest begins with %s: give the whole digest", repository, tag, begin)
	}
	return "", command.Usagef("DIGEST: it isn't known which manifest of %s has a digest that begins with %s: give the whole digest", repository, begin)
}

// withTag lets a list of tags have the earlier states of one tag, too.
func withTag(q url.Values, tag string) url.Values {
	q.Set("specificTag", tag)
	q.Set("onlyActiveTags", "false")
	return q
}
