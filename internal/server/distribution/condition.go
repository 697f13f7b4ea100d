package distribution

import (
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// condition parses the headers If-Match and If-None-Match of a PUT or DELETE of a manifest (RFC
// 9110, section 13.1). They list entity tags. A manifest's entity tag, which GET and HEAD
// return as Etag, is its digest in quotes. condition ignores an entity tag that isn't a digest,
// since no manifest has it.
func condition(r *http.Request) catalog.Condition {
	return catalog.Condition{
		IfMatch:   validators(r.Header["If-Match"], func(tag string) string { return tag }),
		IfNoMatch: validators(r.Header["If-None-Match"], func(tag string) string { return strings.TrimPrefix(tag, "W/") }),
	}
}

// validators parses the lines of one header that lists entity tags. It calls `opaque` on each
// entity tag before it parses the tag; for If-None-Match, `opaque` removes the prefix W/, which
// marks weak tags. If the request lacks the header, validators returns nil.
func validators(lines []string, opaque func(tag string) string) *catalog.Validators {
	if len(lines) == 0 {
		return nil
	}
	v := new(catalog.Validators)
	for _, line := range lines {
		for tag := range strings.SplitSeq(line, ",") {
			tag = strings.TrimSpace(tag)
			if tag == "*" {
				v.Any = true
			} else if d, err := oci.ParseDigest(strings.Trim(opaque(tag), `"`)); err == nil {
				v.Digests = append(v.Digests, d)
			}
		}
	}
	return v
}

// matches returns an error with status 412 if the condition `c`, from the request's If-Match
// and If-None-Match, doesn't hold for the manifest that the request names by the digest `d`. It
// needs no database query, since the entity tag of a manifest is its digest.
func matches(c catalog.Condition, d oci.Digest) error {
	has := func(v *catalog.Validators) bool { return v.Any || slices.Contains(v.Digests, d) }
	if c.IfMatch != nil && !has(c.IfMatch) || c.IfNoMatch != nil && has(c.IfNoMatch) {
		return oci.Errorf(oci.Denied, "nothing was changed, since the condition of the request (If-Match, If-None-Match) doesn't hold for manifest %s", d).
			WithStatus(http.StatusPreconditionFailed).WithDetail(map[string]string{"digest": d.String()})
	}
	return nil
}
