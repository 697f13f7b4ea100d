package browse

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// Bounds of a selection of tags by their names: how many names are looked at, and how many may
// match. Whoever needs more needs a policy.
const (
	maxLookedAt    = 100_000
	maxSelected    = 10_000
	maxTagWildcard = 5
)

// SelectedTag is a tag that a pattern selects.
type SelectedTag struct {
	Name   string
	Digest oci.Digest // of its manifest when it was selected
}

// Selection has the tags of a repository that a pattern selects.
type Selection struct {
	Tags []SelectedTag // in the order of their names
	// Half says that a pattern with * selects half of the repository's tags, or more.
	Half bool
	// Now is the database's time.
	Now time.Time
}

var tagGlobForm = regexp.MustCompile(`^[A-Za-z0-9_.*-]+$`)

// SelectTags returns the tags of a repository whose names match the pattern, in which * stands for
// any characters. Errors: NAME_UNKNOWN; UNSUPPORTED with status 400 for an invalid pattern, or one
// for which too many names would have to be looked at, or that selects too many tags. OFFSET 0 in
// its SQL makes PostgreSQL look rows up by an index: see "Plans" in package db.
func (b *Browser) SelectTags(ctx context.Context, path, pattern string) (s Selection, err error) {
	if err := checkTagGlob(pattern); err != nil {
		return s, err
	}
	r, err := b.lookUp(ctx, path)
	if err != nil {
		return s, err
	}
	names, err := b.matchingTags(ctx, r, pattern)
	if err != nil {
		return s, err
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT t.name, m.digest FROM unnest($3::text[]) AS want (name)
		CROSS JOIN LATERAL (
			SELECT name, manifest_id FROM tags
			WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name = want.name OFFSET 0) t
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = t.manifest_id OFFSET 0) m
		ORDER BY t.name`, r.namespace, r.id, names)
	if err == nil {
		s.Tags, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t SelectedTag, err error) {
			var raw []byte
			if err := row.Scan(&t.Name, &raw); err != nil {
				return t, err
			}
			t.Digest, err = oci.DigestFromBytes(raw)
			return t, err
		})
	}
	if err == nil {
		err = b.db.Pool.QueryRow(ctx, `
			SELECT now(), (SELECT count(*) FROM (
				SELECT FROM tags WHERE repository_id = $2 AND top_level_namespace_id = $1 LIMIT $3) t) < $3`,
			r.namespace, r.id, 2*len(s.Tags)+1).Scan(&s.Now, &s.Half)
	}
	if s.Half = s.Half && len(s.Tags) > 0 && strings.Contains(pattern, "*"); err != nil {
		return s, fmt.Errorf("selecting tags of %s: %w", path, err)
	}
	return s, nil
}

// matchingTags returns the names that match the pattern.
func (b *Browser) matchingTags(ctx context.Context, r repository, pattern string) (names []string, err error) {
	prefix, _, some := strings.Cut(pattern, "*")
	if !some {
		return []string{pattern}, nil
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT name FROM tags
		WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name >= $3 AND name < $4
		ORDER BY name LIMIT $5`, r.namespace, r.id, prefix, prefix+afterNames, maxLookedAt+1)
	if err != nil {
		return nil, fmt.Errorf("selecting tags: %w", err)
	}
	looked := 0
	var name string
	_, err = pgx.ForEachRow(rows, []any{&name}, func() error {
		if looked++; looked > maxLookedAt {
			return tooManyTags("%q: more than %d names begin like it", pattern, maxLookedAt)
		}
		if oci.MatchPath(pattern, name) {
			names = append(names, name)
		}
		if len(names) > maxSelected {
			return tooManyTags("%q selects more than %d tags", pattern, maxSelected)
		}
		return nil
	})
	if err != nil && !oci.IsClientError(err) {
		err = fmt.Errorf("selecting tags: %w", err)
	}
	return names, err
}

func checkTagGlob(pattern string) error {
	switch {
	case len(pattern) > 128:
		return oci.Errorf(oci.Unsupported, "pattern: it has more than 128 characters").WithStatus(400)
	case !tagGlobForm.MatchString(pattern) || strings.Count(pattern, "*") > maxTagWildcard || strings.Contains(pattern, "**"):
		return oci.Errorf(oci.Unsupported, "pattern: %.40q is no pattern of tags: write a name, in which up to %d times * stands for any characters, such as pr-7-*",
			pattern, maxTagWildcard).WithStatus(400)
	}
	return nil
}

func tooManyTags(format string, args ...any) error {
	return oci.Errorf(oci.Unsupported, format+": name more of it, or let a policy do it", args...).WithStatus(400)
}
