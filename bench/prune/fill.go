package prune

import (
	"context"
	"fmt"
	"strings"
)

func (b *bench) exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := b.main.Pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(strings.Fields(sql), " "), err)
		}
	}
	return nil
}

// fill inserts the namespace "bench" with its repositories and tags. Each tag has a manifest
// of its own. In each repository, the first tag was pushed a minute ago, and each further tag
// a minute earlier than the tag before it.
func (b *bench) fill(ctx context.Context) error {
	each := b.tags / b.repositories
	return b.exec(ctx,
		"INSERT INTO top_level_namespaces (name) VALUES ('bench')",
		fmt.Sprintf(`INSERT INTO repositories (top_level_namespace_id, path)
			SELECT n.id, 'bench/r' || i FROM top_level_namespaces n, generate_series(1, %d) AS i WHERE n.name = 'bench'`, b.repositories),
		"ALTER TABLE manifests DISABLE TRIGGER USER",
		fmt.Sprintf(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
			SELECT r.top_level_namespace_id, r.id, '\x01'::bytea || sha256(convert_to(r.id || '-' || i, 'UTF8')),
				'application/vnd.oci.image.manifest.v1+json', convert_to(repeat('x', 600), 'UTF8'), 600
			FROM repositories r, generate_series(1, %d) AS i WHERE r.path LIKE 'bench/%%'`, each),
		"ALTER TABLE manifests ENABLE TRIGGER USER",
		`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
			SELECT top_level_namespace_id, repository_id, 'v' || row_number() OVER (PARTITION BY repository_id ORDER BY id), id,
				now() - interval '1 minute' * row_number() OVER (PARTITION BY repository_id ORDER BY id)
			FROM manifests`,
		"VACUUM (ANALYZE)", "CHECKPOINT")
}

// fillIdle inserts namespaces whose policy selects no tag.
func (b *bench) fillIdle(ctx context.Context) error {
	return b.exec(ctx,
		fmt.Sprintf("INSERT INTO top_level_namespaces (name) SELECT 'idle' || i FROM generate_series(1, %d) AS i", b.namespaces),
		`INSERT INTO repositories (top_level_namespace_id, path)
			SELECT id, name || '/r' FROM top_level_namespaces WHERE name LIKE 'idle%'`,
		`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
			SELECT r.top_level_namespace_id, r.id, '\x01'::bytea || sha256(convert_to(r.id || '-' || i, 'UTF8')),
				'application/vnd.oci.image.manifest.v1+json', convert_to(repeat('x', 600), 'UTF8'), 600
			FROM repositories r, generate_series(1, 10) AS i WHERE r.path LIKE 'idle%'`,
		`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
			SELECT m.top_level_namespace_id, m.repository_id, 'v' || m.id, m.id
			FROM manifests m JOIN repositories r ON r.id = m.repository_id WHERE r.path LIKE 'idle%'`,
		`INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy)
			SELECT gen_random_uuid()::text, id, '{"method":"number_of_tags","numTags":20}' FROM top_level_namespaces WHERE name LIKE 'idle%'`,
		`INSERT INTO autoprunetaskstatus (namespace_id, status, last_ran_ms)
			SELECT id, 'success', (extract(epoch FROM now()) * 1000)::bigint - 3600000 + id FROM top_level_namespaces WHERE name LIKE 'idle%'`,
		"VACUUM (ANALYZE)", "CHECKPOINT")
}
