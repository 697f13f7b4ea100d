package autoprune

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/policy"
)

// UntaggedWarnings returns texts that say where garbage collection keeps untagged manifests for
// longer than the policy says, so that the policy changes nothing.
func (p *Pruner) UntaggedWarnings(ctx context.Context, of policy.Policy) ([]string, error) {
	age := of.Retains()
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
