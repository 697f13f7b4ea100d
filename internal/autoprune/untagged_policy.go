package autoprune

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file is about policies of the method untagged, which delete no tags. They say in olderThan
// what other policies say in keepUntagged.

// untaggedFields are the fields that an untagged policy may have.
var untaggedFields = []string{
	fieldMethod, fieldAge, fieldValue, fieldRepositories, fieldMediaTypes, fieldArtifactTypes, fieldLarger, fieldSmaller,
	fieldAnnotations, fieldLabels, fieldPlatforms, fieldMode,
}

// noEffect are the values that a field may have in every policy, because they mean the same as if it
// were left out.
var noEffect = []string{"null", "[]"}

// checkUntagged refuses fields that an untagged policy doesn't have, so that nobody takes one that
// does nothing for a safeguard.
func checkUntagged(fields map[string]json.RawMessage) error {
	for _, name := range policyFields.fields {
		raw, given := fields[name]
		switch {
		case !given || slices.Contains(untaggedFields, name) || slices.Contains(noEffect, string(raw)):
		case name == fieldOrphans && string(raw) == "false", name == fieldMatches && string(raw) == "true", name == fieldImages && string(raw) == "false",
			name == fieldPerPlatform && string(raw) == "false":
		case name == fieldUntagged:
			return fieldErrorf(name, "a policy of the method %s says it in %s", UntaggedManifests, fieldAge)
		case name == fieldPattern:
			return fieldErrorf(name, "an untagged manifest has no name to match; use %s, %s or %s", fieldMediaTypes, fieldAnnotations, fieldLabels)
		default:
			return fieldErrorf(name, "%s deletes no tags, so it has none", UntaggedManifests)
		}
	}
	return nil
}

// retains returns for how long the policy keeps manifests that nothing references; zero if it
// doesn't.
func (p *Policy) retains() Age {
	if p.method == UntaggedManifests {
		return p.age
	}
	return p.guard.untagged
}

// UntaggedWarnings returns texts that say where garbage collection keeps untagged manifests for
// longer than the policy says, so that the policy changes nothing.
func (p *Pruner) UntaggedWarnings(ctx context.Context, policy Policy) ([]string, error) {
	age := policy.retains()
	if age.Duration() == 0 {
		return nil, nil
	}
	rows, err := p.db.Pool.Query(ctx, `
		SELECT e, extract(epoch FROM COALESCE(d.value, interval '1 day'))::bigint
		FROM unnest(ARRAY['manifest_upload', 'manifest_list_delete', 'tag_delete', 'tag_prune', 'tag_switch', 'subject_delete']) AS e
		LEFT JOIN gc_review_after_defaults d ON d.event = e`)
	if err != nil {
		return nil, fmt.Errorf("reading the review delays of garbage collection: %w", err)
	}
	delays := make(map[time.Duration][]string)
	var event string
	var seconds int64
	_, err = pgx.ForEachRow(rows, []any{&event, &seconds}, func() error {
		if delay := time.Duration(seconds) * time.Second; delay > age.Duration() {
			delays[delay] = append(delays[delay], event)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the review delays of garbage collection: %w", err)
	}
	var warnings []string
	for _, delay := range slices.Sorted(maps.Keys(delays)) {
		slices.Sort(delays[delay])
		warnings = append(warnings, fmt.Sprintf("garbage collection keeps untagged manifests for %s after %s, which is longer than %s: there the policy changes nothing",
			ageText(delay), strings.Join(delays[delay], ", "), age))
	}
	return warnings, nil
}

// ageText writes a duration as an age.
func ageText(d time.Duration) string {
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if d >= unit.of && d%unit.of == 0 {
			return fmt.Sprintf("%d%s", d/unit.of, unit.name)
		}
	}
	return d.String()
}
