package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
)

// The namespaces of teams that have used the registry for months. The tour leaves them alone: they
// are for whoever looks at the registry meanwhile. Their images are pushed like all others; their
// dates and pulls are made up, by SQL, since nobody can push in the past.
const (
	shopTeam = "shop"
	dataTeam = "data"
)

const (
	pastWeeks  = 26  // since a team's first push; the last was two days ago
	pastDays   = 120 // for which there are pulls
	busyPulls  = 90  // of a repository on a weekday, at the end
	heldTags   = 2   // the newest of shop/cart, which a cluster runs
	fullQuota  = 96  // percent of its quota that the team data uses
	askedAbove = 3   // tags that a policy of the team data deletes without an approval
)

// pastRepository is a repository with a tag for each of so many weeks.
type pastRepository struct {
	name     string
	tag      string // with the number of the week
	weeks    int
	bytes    int // of each image's own layer
	platform []v1.Platform
}

var pastRepositories = []pastRepository{
	{shopTeam + "/cart", "v3.%d", pastWeeks, 256 << 10, []v1.Platform{amd64, arm64}},
	{shopTeam + "/checkout", "v1.%d", 16, 128 << 10, []v1.Platform{amd64}},
	{dataTeam + "/etl", "build-%d", pastWeeks, 384 << 10, []v1.Platform{amd64}},
	{dataTeam + "/notebook", "2026.%d", 9, 512 << 10, []v1.Platform{amd64}},
}

// teams pushes the repositories of the teams, gives them their past, and sets what is worth looking
// at: a policy that observes, one that waits for a decision, a report of what runs, a quota that is
// nearly full.
func (t *tour) teams(ctx context.Context) error {
	if err := t.line.say("\nMaking the registry of two teams, %s and %s, with half a year of releases and pulls that are made up …\n", shopTeam, dataTeam); err != nil {
		return err
	}
	group, pushing := errgroup.WithContext(ctx)
	running := make([]api.HoldItem, 0, heldTags)
	for i, r := range pastRepositories {
		group.Go(func() error {
			newest, err := pushPast(pushing, t.client, r)
			if i == 0 {
				running = newest
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := makePast(ctx, t.registry.dsn); err != nil {
		return fmt.Errorf("making up the past of the teams: %w", err)
	}
	return t.decide(ctx, running)
}

// pushPast pushes a repository, the oldest week first, and returns its newest digests as a report
// names them.
func pushPast(ctx context.Context, c *client, r pastRepository) (newest []api.HoldItem, err error) {
	bases := make([]content, len(r.platform))
	for i := range bases {
		bases[i] = newLayer("base", mebibyte)
	}
	for week := range r.weeks {
		tag := fmt.Sprintf(r.tag, week)
		m, err := pushWeek(ctx, c, r, bases, tag)
		if err != nil {
			return nil, err
		}
		if week >= r.weeks-heldTags {
			digest, err := oci.ParseDigest(m.Digest.String())
			if err != nil {
				return nil, err
			}
			newest = append(newest, api.HoldItem{Digest: digest, UsedBy: "deployment " + shopTeam + "/cart", Names: []string{r.name + ":" + tag}})
		}
	}
	return newest, nil
}

// pushWeek pushes the image of a tag, or the index of its images, and returns its manifest.
func pushWeek(ctx context.Context, c *client, r pastRepository, bases []content, tag string) (content, error) {
	if len(r.platform) == 1 {
		only := newImage(r.platform[0], bases[0], newLayer("program", r.bytes))
		return only.manifest, c.pushImage(ctx, r.name, only, tag)
	}
	images := make([]image, len(r.platform))
	for i, platform := range r.platform {
		images[i] = newImage(platform, bases[i], newLayer("program", r.bytes))
		if err := c.pushImage(ctx, r.name, images[i]); err != nil {
			return content{}, err
		}
	}
	index := newIndex(images)
	return index, c.pushManifest(ctx, r.name, index, tag)
}

// makePast gives the teams' tags dates of the past, one week apart, and their repositories pulls of
// the last days, fewer on weekends and more from month to month.
func makePast(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what it has done is committed
	names := make([]string, len(pastRepositories))
	for i, r := range pastRepositories {
		names[i] = r.name
	}
	var batch pgx.Batch
	batch.Queue(`WITH aged AS (
			SELECT t.top_level_namespace_id, t.repository_id, t.name, row_number() OVER (PARTITION BY t.repository_id ORDER BY t.created_at DESC, t.id DESC) - 1 AS weeks
			FROM tags t JOIN live_repositories r ON r.id = t.repository_id AND r.top_level_namespace_id = t.top_level_namespace_id
			WHERE r.path = ANY ($1))
		UPDATE tags t SET created_at = now() - make_interval(weeks => a.weeks::int, days => 2, hours => (a.weeks * 5 % 9)::int), updated_at = NULL
		FROM aged a WHERE a.repository_id = t.repository_id AND a.top_level_namespace_id = t.top_level_namespace_id AND a.name = t.name`, names)
	batch.Queue(`UPDATE pullstatisticsprocessingstate SET recorded_since = now() - make_interval(days => $1), checks_since = now() - make_interval(days => $1),
		history_since = now() - make_interval(days => $1), created_at = now() - make_interval(days => $1)`, pastDays)
	batch.Queue(`INSERT INTO repositorypullhistory (repository_id, day, namespace_id, pulls)
		SELECT r.id, (now() AT TIME ZONE 'UTC')::date - d, r.top_level_namespace_id,
			($2 * (1 - d / ($3 * 1.4)) * CASE WHEN extract(isodow FROM now() - make_interval(days => d)) > 5 THEN 0.3 ELSE 1 END / (1 + array_position($1, r.path) * 0.4)
			 * (0.8 + (hashtext(r.path || d) & 255) / 640.0))::bigint
		FROM live_repositories r, generate_series(1, $3) d WHERE r.path = ANY ($1)`, names, busyPulls, pastDays)
	batch.Queue(`INSERT INTO namespacepullhistory (namespace_id, day, pulls) SELECT namespace_id, day, sum(pulls) FROM repositorypullhistory WHERE pulls > 0 GROUP BY 1, 2
		ON CONFLICT (namespace_id, day) DO NOTHING`)
	batch.Queue(`INSERT INTO pullhistory (day, pulls) SELECT day, sum(pulls) FROM repositorypullhistory WHERE pulls > 0 GROUP BY 1 ON CONFLICT (day) DO NOTHING`)
	// Of the pulls of a day, the tag that was the newest then has two thirds, and the one before the rest.
	batch.Queue(`INSERT INTO tagpullhistory (repository_id, tag_name, day, pulls)
		SELECT h.repository_id, n.name, h.day, CASE n.rank WHEN 1 THEN h.pulls - h.pulls / 3 ELSE h.pulls / 3 END
		FROM repositorypullhistory h CROSS JOIN LATERAL (
			SELECT t.name, row_number() OVER (ORDER BY t.created_at DESC) AS rank FROM tags t
			WHERE t.repository_id = h.repository_id AND t.top_level_namespace_id = h.namespace_id AND t.created_at < h.day + 1
			ORDER BY t.created_at DESC LIMIT 2) n
		WHERE h.pulls > 2`)
	batch.Queue(`INSERT INTO manifestpullhistory (repository_id, manifest_digest, day, pulls)
		SELECT h.repository_id, purser_digest_text(m.digest), h.day, sum(h.pulls) FROM tagpullhistory h
		JOIN tags t ON t.repository_id = h.repository_id AND t.name = h.tag_name
		JOIN manifests m ON m.id = t.manifest_id AND m.repository_id = t.repository_id AND m.top_level_namespace_id = t.top_level_namespace_id GROUP BY 1, 2, 3`)
	batch.Queue(`INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count, last_tag_pull_date, current_manifest_digest)
		SELECT h.repository_id, h.tag_name, sum(h.pulls), least(max(h.day) + interval '15 hours', now() - interval '1 hour'), purser_digest_text(m.digest) FROM tagpullhistory h
		JOIN tags t ON t.repository_id = h.repository_id AND t.name = h.tag_name
		JOIN manifests m ON m.id = t.manifest_id AND m.repository_id = t.repository_id AND m.top_level_namespace_id = t.top_level_namespace_id GROUP BY 1, 2, m.digest`)
	batch.Queue(`INSERT INTO manifestpullstatistics (repository_id, manifest_digest, total_pull_count, last_pull_date, last_tag_pulled, last_tag_pull_date)
		SELECT repository_id, current_manifest_digest, sum(tag_pull_count), max(last_tag_pull_date), max(tag_name), max(last_tag_pull_date) FROM tagpullstatistics
		WHERE current_manifest_digest IS NOT NULL GROUP BY 1, 2`)
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after Commit there is nothing to roll back
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// decide sets what waits for somebody: policies, a report, a quota.
func (t *tour) decide(ctx context.Context, running []api.HoldItem) error {
	for _, p := range []struct{ namespace, body string }{
		{shopTeam, `{"method": "number_of_tags", "numTags": 10, "mode": "observe"}`},
		{dataTeam, fmt.Sprintf(`{"method": "creation_date", "olderThan": "90d", "keep": [{"usedWithin": "30d"}], "maxDeleted": %d}`, askedAbove)},
	} {
		in := api.PolicyNew{PolicyAt: api.PolicyAt{Namespace: p.namespace}, PolicyConfirmation: api.PolicyConfirmation{Confirm: "all"}, Body: api.PolicyText(p.body)}
		if _, err := api.CreatePolicy.Call(ctx, t.api, in); err != nil {
			return err
		}
	}
	report := api.HoldReportInput{
		HoldReporting: api.HoldReporting{HoldReporterItem: api.HoldReporterItem{Reporter: "production"}, Lease: (24 * time.Hour).String(), Kind: "kubernetes"},
		Body:          api.HoldReport{Digests: running},
	}
	if _, err := api.ReportHolds.Call(ctx, t.api, report); err != nil {
		return err
	}
	sizes, err := api.GetNamespace.Call(ctx, t.api, api.NamespaceSizes{InNamespace: api.InNamespace{Namespace: dataTeam}})
	if err != nil {
		return err
	}
	most := sizes.Size.Bytes * 100 / fullQuota
	_, err = api.CreateQuota.Call(ctx, t.api, api.QuotaNew{At: api.At{Namespace: dataTeam}, Body: api.QuotaForm{LimitBytes: &most,
		Limits: []api.QuotaLimitForm{{Type: "Warning", Threshold: 80}, {Type: "Reject", Threshold: 100}}}})
	return err
}
