package prune

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/purser-registry/purser/bench/meter"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// within is how long a preview or a forecast may take, also on a busy machine.
const within = 10 * time.Minute

// forecasting measures previews and forecasts of one large namespace.
func (b *bench) forecasting(ctx context.Context) error {
	start := time.Now()
	if err := b.fill(ctx); err != nil {
		return fmt.Errorf("filling: %w", err)
	}
	if err := b.fillPast(ctx); err != nil {
		return fmt.Errorf("filling: %w", err)
	}
	var entries int64
	if err := b.main.Pool.QueryRow(ctx, "SELECT count(*) FROM auditlog").Scan(&entries); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d tags in %d repositories, %d entries in the audit log, filled in %s\n", b.tags, b.repositories, entries, time.Since(start).Round(time.Second))
	p, err := autoprune.New(autoprune.Options{DB: b.main, Background: b.pruning, Catalog: b.catalog, Log: b.log,
		Pulls: func(context.Context) (judge.PullRecord, error) {
			return judge.PullRecord{Since: time.Unix(0, 0)}, nil
		}})
	if err != nil {
		return err
	}
	forecasts := forecast.New(p.Repositories, p.Policies)
	for _, c := range []struct{ policy, settings string }{
		{`{"method": "creation_date", "olderThan": "30d"}`, "7d,30d,60d,90d"},
		{`{"method": "creation_date", "olderThan": "30d", "tagPattern": "^v[0-9]*[02468]$"}`, "7d,30d,60d,90d"},
		{fmt.Sprintf(`{"method": "number_of_tags", "numTags": %d, "keep": %s}`, b.keep, b.rules), "10,100,1000"},
		// Half of the tags of each repository fit into this size.
		{fmt.Sprintf(`{"method": "max_bytes", "maxBytes": "%dMB"}`, 500+5*b.tags/b.repositories/2), "1GB,10GB,100GB"},
	} {
		policy, err := policy.Parse([]byte(c.policy))
		if err != nil {
			return err
		}
		target := policies.Target{Namespace: "bench"}
		for _, tagsOnly := range []bool{true, false} {
			took, what := b.measure(), "with the bytes"
			if tagsOnly {
				what = "without the bytes"
			}
			preview, err := p.Preview(ctx, target, autoprune.PreviewOptions{Policy: &policy, HideBytes: tagsOnly, Within: within})
			if err != nil {
				return err
			}
			fmt.Fprintf(b.out, "%s: preview of %d tags, %d deleted, %s, in %s\n", policy, preview.Tags, preview.Deleted, what, took())
		}
		runtime.GC()
		heap := meter.WatchHeap()
		took := b.measure()
		f, err := forecasts.Forecast(ctx, target, forecast.Options{Policy: &policy, Settings: strings.Split(c.settings, ","), Within: within})
		if err != nil {
			return err
		}
		used := took()
		if !f.Complete || len(f.Days) != 90 {
			return fmt.Errorf("the forecast isn't complete: %+v", f)
		}
		fmt.Fprintf(b.out, "%s: forecast of %d days and %d settings, %d tags now, %d deleted, in %s, peak heap %d MiB\n",
			policy, len(f.Days), len(f.Settings), f.Tags, f.Deleted, used, (heap()-b.held)>>20)
	}
	return nil
}

// measure begins to measure what a preview or a forecast takes. `took` returns the time since then and the
// CPU time: on a machine that others use too, only the latter can be compared.
func (b *bench) measure() (took func() string) {
	all := meter.New(proc, []int{os.Getpid(), b.postmaster})
	clock, before := time.Now(), all.Now(false)
	return func() string {
		wall, after := time.Since(clock), all.Now(false)
		return fmt.Sprintf("%s (CPU time: %s of this process, %s of PostgreSQL)", wall.Round(time.Millisecond),
			(after.Server - before.Server).Round(time.Millisecond), (after.Database - before.Database).Round(time.Millisecond))
	}
}

// fillPast spreads the pushes of the tags over 120 days. The audit log gets the push of each
// tag, further pushes of the same manifest, which come before it, and pulls: -entries for each tag in
// total, of which a fifth are pushes. Each image has ten layers, of which five are shared, with their
// sizes beside them, as a push stores them.
func (b *bench) fillPast(ctx context.Context) error {
	return b.exec(ctx,
		`UPDATE tags SET created_at = now() - interval '120 days' * ((id * 7919) % 1000) / 1000`,
		`INSERT INTO blobs (digest, size, storage_key)
			SELECT '\x01'::bytea || sha256(convert_to('own' || m.id || '-' || i, 'UTF8')), 1000000, 'own' || m.id || '-' || i FROM manifests m, generate_series(1, 5) AS i
			UNION ALL SELECT '\x01'::bytea || sha256(convert_to('shared' || i, 'UTF8')), 1000000, 'shared' || i FROM generate_series(1, 500) AS i`,
		"ALTER TABLE layers DISABLE TRIGGER USER",
		`INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, blob_size, media_type)
			SELECT m.top_level_namespace_id, m.repository_id, m.id,
				'\x01'::bytea || sha256(convert_to(CASE WHEN i <= 5 THEN 'own' || m.id || '-' || i ELSE 'shared' || (m.id * 5 + i) % 500 + 1 END, 'UTF8')),
				1000000, 1000000, 'application/vnd.oci.image.layer.v1.tar+gzip'
			FROM manifests m, generate_series(1, 10) AS i`,
		"ALTER TABLE layers ENABLE TRIGGER USER",
		`INSERT INTO gc_blobs_layers (top_level_namespace_id, repository_id, layer_id, digest)
			SELECT top_level_namespace_id, repository_id, id, digest FROM layers`,
		fmt.Sprintf(`INSERT INTO auditlog (time, kind, namespace, repository, repository_id, tag, digest, actor, counted_by)
			SELECT CASE WHEN i = 1 THEN t.created_at ELSE t.created_at - interval '1 hour' * i END,
				CASE WHEN i %% 5 = 1 THEN 'push_repo' ELSE 'pull_repo' END, 'bench', r.path, r.id, t.name, m.digest, 'bench+ci',
				CASE WHEN i %% 5 <> 1 THEN 'audit' END
			FROM tags t JOIN manifests m ON m.id = t.manifest_id JOIN repositories r ON r.id = t.repository_id, generate_series(1, %d) AS i`, b.entries),
		fmt.Sprintf(`UPDATE tags t SET created_at = created_at - interval '1 hour' * i, updated_at = created_at
			FROM (SELECT max(i) AS i FROM generate_series(1, %d) AS i WHERE i %% 5 = 1) earliest WHERE i > 1`, b.entries),
		"VACUUM (ANALYZE)", "CHECKPOINT")
}
