package check_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/purser-registry/purser/internal/check"
)

// 2,500 manifests have total sizes that the first release computed wrongly. The corrector is
// stopped and started again in the middle. It must correct all of the sizes, and end by
// itself after its second pass.
func TestSizesAreCorrected(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	const manifests = 2500
	b.exec("INSERT INTO top_level_namespaces (name) VALUES ('acme')")
	b.exec("INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/app' FROM top_level_namespaces")
	b.exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
		SELECT top_level_namespace_id, id, '\x01'::bytea || sha256(i::text::bytea), 'm', convert_to(repeat('x', i), 'UTF8'), i * 1000
		FROM repositories, generate_series(1, $1::int) i`, manifests)
	b.exec("UPDATE manifest_size_corrections SET finished_at = NULL, due_at = now()")
	value := func(sql string) (n int) {
		t.Helper()
		if err := b.db.Pool.QueryRow(context.WithoutCancel(t.Context()), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	run := func(ctx context.Context) error {
		c, err := check.NewSizeCorrector(check.SizeCorrectorOptions{DB: b.db, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}
	stop := b.start(run)
	b.eventually("a page is compared", func() bool { return value("SELECT compared FROM manifest_size_corrections") > 0 })
	stop()
	stop = b.start(run)
	b.eventually("the first pass is over", func() bool { return value("SELECT pass FROM manifest_size_corrections") == 2 })
	stop()
	if n := value("SELECT count(*) FROM manifests WHERE total_size <> octet_length(payload)"); n > 0 {
		t.Errorf("%d sizes are still wrong", n)
	}
	b.exec("UPDATE manifests SET total_size = -1 WHERE id % 1000 = 0") // by a process of the first release
	b.exec("UPDATE manifest_size_corrections SET due_at = now()")
	if err := run(t.Context()); err != nil { // it ends by itself
		t.Error(err)
	}
	if n := value("SELECT count(*) FROM manifests WHERE total_size <> octet_length(payload)"); n > 0 {
		t.Errorf("%d sizes are wrong after the second pass", n)
	}
	if compared, corrected := value("SELECT compared FROM manifest_size_corrections"), value("SELECT corrected FROM manifest_size_corrections"); compared != 2*manifests || corrected < manifests+2 {
		t.Errorf("%d compared and %d corrected", compared, corrected)
	}
}
