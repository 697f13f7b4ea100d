-- This fills an empty registry for the scenario "ui". The settings bench.namespaces, bench.repositories,
-- bench.tags, bench.entries and bench.rows have the sizes. Triggers and foreign keys are switched
-- off in this session, so each INSERT writes all rows that a push would make triggers write.
-- No blob has an object in the store.

SET session_replication_role = replica;

INSERT INTO top_level_namespaces (name, created_at)
SELECT 'team-' || to_char(i, 'FM0000'), now() - interval '400 days'
FROM generate_series(0, current_setting('bench.namespaces')::int - 1) AS i;

INSERT INTO repositories (top_level_namespace_id, path, created_at, is_public)
SELECT n.id, n.name || '/app-' || to_char(i, 'FM00000'), now() - interval '1 minute' * i, i % 10 = 0
FROM generate_series(1, current_setting('bench.repositories')::int - 1) AS i
JOIN top_level_namespaces n ON n.name = 'team-' || to_char(i % current_setting('bench.namespaces')::int, 'FM0000');

INSERT INTO repositories (top_level_namespace_id, path, created_at, is_public)
SELECT id, name || '/large', now() - interval '400 days', false FROM top_level_namespaces WHERE name = 'team-0000';

-- Blobs: layers that many images share, then one layer and one configuration for each image.
CREATE TEMPORARY TABLE images AS
SELECT r.top_level_namespace_id, r.id AS repository_id, r.path, i, nextval('manifests_id_seq') AS id,
    '\x01'::bytea || sha256(convert_to('layer ' || r.id || ' ' || i, 'UTF8')) AS layer,
    '\x01'::bytea || sha256(convert_to('config ' || r.id || ' ' || i, 'UTF8')) AS config
FROM repositories r, LATERAL generate_series(1, CASE WHEN r.path LIKE '%/large' THEN current_setting('bench.tags')::int * 11 / 10 ELSE 5 END) AS i;

INSERT INTO blobs (digest, size, media_type, storage_key)
SELECT '\x01'::bytea || sha256(convert_to('shared ' || i, 'UTF8')), 30000000, 'application/octet-stream', 'bench/shared/' || i FROM generate_series(0, 1999) AS i
UNION ALL SELECT layer, 1000000 + i, 'application/octet-stream', 'bench/layer/' || id FROM images
UNION ALL SELECT config, 2000, 'application/octet-stream', 'bench/config/' || id FROM images;

CREATE TEMPORARY TABLE image_layers AS
SELECT top_level_namespace_id, repository_id, id AS manifest_id, nextval('layers_id_seq') AS id, nth,
    CASE nth WHEN 2 THEN layer ELSE '\x01'::bytea || sha256(convert_to('shared ' || (i + nth * 1000) % 2000, 'UTF8')) END AS digest,
    CASE nth WHEN 2 THEN 1000000 + i ELSE 30000000 END AS size
FROM images, generate_series(0, 2) AS nth;

CREATE TEMPORARY TABLE made AS
SELECT i.top_level_namespace_id, i.repository_id, i.path, i.i, i.id, i.config, 'application/vnd.oci.image.manifest.v1+json' AS media_type,
    2000 + sum(l.size) AS size, convert_to(format(
        '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":2000},"layers":[%s]}',
        substr(encode(i.config, 'hex'), 3),
        string_agg(format('{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:%s","size":%s}', substr(encode(l.digest, 'hex'), 3), l.size), ',' ORDER BY l.nth)), 'UTF8') AS payload
FROM images i JOIN image_layers l ON l.manifest_id = i.id
GROUP BY 1, 2, 3, 4, 5, 6;
ANALYZE made;

-- In the large repository, a tenth of the tags are indexes of two images. These images have the
-- numbers above nine tenths of the number of tags, and no tag.
CREATE TEMPORARY TABLE indexes AS
SELECT min(top_level_namespace_id) AS top_level_namespace_id, min(repository_id) AS repository_id, nextval('manifests_id_seq') AS id, array_agg(id) AS children,
    convert_to(format('{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}',
        string_agg(format('{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"platform":{"os":"linux","architecture":"%s"}}',
            encode(sha256(payload), 'hex'), octet_length(payload), CASE i % 2 WHEN 0 THEN 'amd64' ELSE 'arm64' END), ',' ORDER BY i)), 'UTF8') AS payload
FROM made WHERE path LIKE '%/large' AND i > current_setting('bench.tags')::int * 9 / 10
GROUP BY (i - 1) / 2;

INSERT INTO manifests (top_level_namespace_id, repository_id, id, digest, media_type, configuration_blob_digest, payload, total_size, created_at)
SELECT top_level_namespace_id, repository_id, id, '\x01'::bytea || sha256(payload), media_type, config, payload, size + octet_length(payload), now() - interval '200 days'
FROM made
UNION ALL
SELECT top_level_namespace_id, repository_id, id, '\x01'::bytea || sha256(payload), 'application/vnd.oci.image.index.v1+json', NULL, payload, octet_length(payload), now() - interval '200 days'
FROM indexes;

INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
SELECT top_level_namespace_id, repository_id, id, unnest(children) FROM indexes;

INSERT INTO layers (top_level_namespace_id, repository_id, id, manifest_id, digest, size, media_type)
SELECT top_level_namespace_id, repository_id, id, manifest_id, digest, size, 'application/vnd.oci.image.layer.v1.tar+gzip' FROM image_layers;
INSERT INTO gc_blobs_layers (top_level_namespace_id, repository_id, layer_id, digest)
SELECT top_level_namespace_id, repository_id, id, digest FROM image_layers;
INSERT INTO gc_blobs_configurations (top_level_namespace_id, repository_id, manifest_id, digest)
SELECT top_level_namespace_id, repository_id, id, config FROM images;
INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
SELECT DISTINCT top_level_namespace_id, repository_id, digest FROM image_layers
UNION ALL SELECT top_level_namespace_id, repository_id, config FROM images;

INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
SELECT top_level_namespace_id, repository_id, CASE WHEN path LIKE '%/large' THEN 'build-' || to_char(i, 'FM000000') ELSE 'v1.' || i END, id,
    now() - interval '1 minute' - interval '200 days' * i / current_setting('bench.tags')::int
FROM made WHERE path NOT LIKE '%/large' OR i <= current_setting('bench.tags')::int * 9 / 10
UNION ALL
SELECT top_level_namespace_id, repository_id, 'release-' || to_char(row_number() OVER (ORDER BY id), 'FM000000'), id,
    now() - interval '1 minute' - interval '200 days' * row_number() OVER (ORDER BY id) / (SELECT count(*) FROM indexes)
FROM indexes;

-- Statistics of pulls. Each second tag was pulled, at some time in the last 150 days.
CREATE TEMPORARY TABLE tagged AS
SELECT t.top_level_namespace_id, t.repository_id, r.path, t.name, 'sha256:' || substr(encode(m.digest, 'hex'), 3) AS digest, m.digest AS bytes,
    row_number() OVER (ORDER BY t.repository_id, t.name) AS n
FROM tags t JOIN manifests m ON m.top_level_namespace_id = t.top_level_namespace_id AND m.repository_id = t.repository_id AND m.id = t.manifest_id
JOIN repositories r ON r.id = t.repository_id;
ANALYZE tagged;
INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count, last_tag_pull_date, current_manifest_digest, day, day_pulls)
SELECT repository_id, name, n % 997 + 1, now() - interval '1 hour' * (n * 7919 % 3600), digest, current_date - (n * 7919 % 3600 / 24)::int, 1 FROM tagged WHERE n % 2 = 0;
INSERT INTO manifestpullstatistics (repository_id, manifest_digest, total_pull_count, last_pull_date, day, day_pulls)
SELECT repository_id, digest, max(n) % 997 + 1, max(now() - interval '1 hour' * (n * 7919 % 3600)), max(current_date - (n * 7919 % 3600 / 24)::int), 1 FROM tagged WHERE n % 2 = 0 GROUP BY 1, 2;
INSERT INTO tagpullhistory (repository_id, tag_name, day, pulls)
SELECT repository_id, name, current_date - (n * 7919 % 3600 / 24)::int - d, 1 + d FROM tagged, generate_series(1, 3) AS d WHERE n % 2 = 0
UNION ALL SELECT t.repository_id, 'build-000001', current_date - d, d FROM tagged t, generate_series(1, 400) AS d WHERE t.name = 'build-000001'
ON CONFLICT DO NOTHING;
INSERT INTO manifestpullhistory (repository_id, manifest_digest, day, pulls)
SELECT repository_id, digest, current_date - (n * 7919 % 3600 / 24)::int - d, 1 + d FROM tagged, generate_series(1, 3) AS d WHERE n % 2 = 0
ON CONFLICT DO NOTHING;
-- Most repositories were pulled on every tenth day, and every tenth one on each day.
INSERT INTO repositorypullhistory (repository_id, day, namespace_id, pulls)
SELECT id, current_date - d, top_level_namespace_id, 1 + (id + d) % 50 FROM repositories, generate_series(0, 399) AS d
WHERE id % 10 = 0 OR (id + d) % 10 = 0 OR path LIKE '%/large';
INSERT INTO namespacepullhistory (namespace_id, day, pulls) SELECT namespace_id, day, sum(pulls) FROM repositorypullhistory GROUP BY 1, 2;
INSERT INTO pullhistory (day, pulls) SELECT day, sum(pulls) FROM repositorypullhistory GROUP BY 1;
UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '400 days', checks_since = now() - interval '400 days', history_since = now() - interval '400 days';

-- The audit log of 90 days: of ten entries, seven are pulls, two are pushes, and the tenth deletes
-- or moves a tag or comes from a run of auto-pruning. A fifth belongs to the large repository.
DO $$
DECLARE
    month timestamptz := date_trunc('month', now(), 'UTC');
BEGIN
    FOR i IN 1 .. 3 LOOP
        EXECUTE format('CREATE TABLE partitions.%I PARTITION OF auditlog FOR VALUES FROM (%L) TO (%L)',
            'auditlog_' || to_char((month - interval '1 month') AT TIME ZONE 'UTC', 'YYYY_MM'), month - interval '1 month', month);
        month := month - interval '1 month';
    END LOOP;
END;
$$;
INSERT INTO auditlog (time, kind, actor, address, user_agent, namespace, repository, repository_id, tag, digest, policy, run, counted_by)
SELECT now() - interval '85 days' * i / current_setting('bench.entries')::int - interval '1 minute',
    k.kind, 'team-' || i % 200 || '+ci', '10.1.' || i % 200 || '.7', 'docker/28.1.1 go/go1.26 kernel/6.18 os/linux arch/amd64',
    split_part(t.path, '/', 1), t.path, t.repository_id, t.name, t.bytes,
    CASE k.kind WHEN 'autoprune_tag_delete' THEN '00000000-0000-4000-8000-000000000001'::uuid END,
    CASE k.kind WHEN 'autoprune_tag_delete' THEN '00000000-0000-4000-9000-000000000001'::uuid END,
    CASE k.kind WHEN 'pull_repo' THEN 'audit' END
FROM generate_series(1, current_setting('bench.entries')::int) AS i
CROSS JOIN LATERAL (SELECT CASE WHEN i % 10 < 7 THEN 'pull_repo' WHEN i % 10 < 9 THEN 'push_repo'
    ELSE (ARRAY['delete_tag', 'move_tag', 'autoprune_tag_delete', 'create_tag'])[i / 10 % 4 + 1] END AS kind) k
CROSS JOIN LATERAL (SELECT i * 7919::bigint % (SELECT max(n) FROM tagged) + 1 AS n) p
JOIN tagged t ON t.n = p.n;
UPDATE pullstatisticsprocessingstate SET last_processed_log_id = (SELECT max(id) FROM auditlog), last_processed_xid = (SELECT max(xid) FROM auditlog), entries_counted = (SELECT count(*) FROM auditlog WHERE kind = 'pull_repo');

-- Policies that select nothing, and runs.
INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy)
SELECT gen_random_uuid()::text, id, '{"method":"number_of_tags","numTags":1000000}' FROM top_level_namespaces, generate_series(1, 3) WHERE id % 4 = 0
UNION ALL SELECT gen_random_uuid()::text, id, '{"method":"creation_date","olderThan":"5000d"}' FROM top_level_namespaces, generate_series(1, 20) WHERE name = 'team-0000';
INSERT INTO repositoryautoprunepolicy (uuid, namespace_id, repository_id, policy)
SELECT gen_random_uuid()::text, top_level_namespace_id, id, '{"method":"number_of_tags","numTags":1000000}' FROM repositories WHERE id % 20 = 0 OR path LIKE '%/large';
INSERT INTO autoprunetaskstatus (namespace_id, status, last_ran_ms)
SELECT id, 'success', (extract(epoch FROM now()) * 1000)::bigint FROM top_level_namespaces;
INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, ended_at, times, repositories, tags, deleted, announced)
SELECT gen_random_uuid(), n.id, n.name, 'success', now() - interval '10 minutes' * i, now() - interval '10 minutes' * i + interval '3 seconds', 1, 50, 250, i % 3 * 10, true
FROM generate_series(1, current_setting('bench.rows')::int / 10) AS i JOIN top_level_namespaces n ON n.id = (SELECT min(id) FROM top_level_namespaces) + i % current_setting('bench.namespaces')::int;
INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, ended_at, repositories, tags, deleted, announced)
SELECT '00000000-0000-4000-9000-000000000001', id, name, 'success', now() - interval '1 hour', now() - interval '1 minute', 50, 100000, current_setting('bench.entries')::int / 40, true FROM top_level_namespaces WHERE name = 'team-0000';
INSERT INTO autopruneruns_repositories (run, repository_id, repository, deleted, policies)
SELECT '00000000-0000-4000-9000-000000000001', id, path, 500, '{"00000000-0000-4000-8000-000000000001": 500}' FROM repositories WHERE path LIKE 'team-0000/%';

-- The trash, the queues of garbage collection, and uploads.
INSERT INTO repositories (top_level_namespace_id, path, is_public, deleted_at, deleted_path, deleted_by, purge_after)
SELECT n.id, '#' || i || '/' || n.name || '/gone-' || i, false, now() - interval '1 second' * i, n.name || '/gone-' || i, 'admin', now() + interval '1 day'
FROM generate_series(1, current_setting('bench.rows')::int / 100) AS i JOIN top_level_namespaces n ON n.name = 'team-' || to_char(i % current_setting('bench.namespaces')::int, 'FM0000');
INSERT INTO top_level_namespaces (name, deleted_at, deleted_name, deleted_by, purge_after)
SELECT '#n' || i || '/gone-' || i, now(), 'gone-' || i, 'admin', now() + interval '1 day' FROM generate_series(1, 20) AS i;
INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event, set_aside_at, last_error)
SELECT top_level_namespace_id, repository_id, id, now() + interval '1 day' + interval '1 second' * i, 'tag_delete', CASE WHEN i % 100 = 0 THEN now() END, CASE WHEN i % 100 = 0 THEN 'the database was gone' END
FROM images WHERE path LIKE '%/large' LIMIT current_setting('bench.rows')::int;
INSERT INTO gc_blob_review_queue (digest, review_after, event, set_aside_at, last_error)
SELECT layer, now() + interval '1 day' + interval '1 second' * i, 'layer_delete', CASE WHEN i % 100 = 0 THEN now() END, CASE WHEN i % 100 = 0 THEN 'the database was gone' END
FROM images WHERE path LIKE '%/large' LIMIT current_setting('bench.rows')::int;
INSERT INTO gc_doomed_objects (storage_key, size, doomed_at, delete_after)
SELECT 'bench/doomed/' || i, 1000000, now(), now() + interval '1 day' FROM generate_series(1, current_setting('bench.rows')::int) AS i;
INSERT INTO gc_activity (minute, manifests_reviewed, manifests_deleted, blobs_reviewed, blobs_deleted, objects_swept, bytes_swept)
SELECT date_trunc('minute', now()) - interval '1 minute' * i, 10, 5, 20, 8, 8, 8000000 FROM generate_series(1, 40 * 24 * 60) AS i ON CONFLICT DO NOTHING;
INSERT INTO uploads (id, repository, storage_key, size, repository_id)
SELECT gen_random_uuid(), path, 'bench/upload/' || id, 1000, id FROM repositories WHERE id % 10 = 0 AND deleted_at IS NULL;

-- Reporters of what is deployed. The first holds as many digests as the queues have rows.
INSERT INTO holdreporters (namespace_id, name, kind, lease, digests, expires_at)
SELECT NULL, 'cluster-' || i, 'kubernetes', interval '7 days', CASE i WHEN 1 THEN current_setting('bench.rows')::int ELSE 0 END, now() + interval '7 days' FROM generate_series(1, 200) AS i;
INSERT INTO holds (digest, reporter_id, used_by)
SELECT '\x01'::bytea || sha256(convert_to('held ' || i, 'UTF8')), r.id, 'shop/deployment/app-' || i / 3 FROM holdreporters r, generate_series(1, current_setting('bench.rows')::int - 1000) AS i WHERE r.name = 'cluster-1'
UNION ALL SELECT DISTINCT ON (bytes) bytes, r.id, 'shop/deployment/large' FROM holdreporters r, (SELECT bytes FROM tagged WHERE path LIKE '%/large' ORDER BY n LIMIT 1000) t WHERE r.name = 'cluster-1';

-- People with roles, teams and robots. The account "member" administers a fifth of the namespaces.
INSERT INTO accounts (name, kind, email) SELECT 'person-' || i, 'user', 'person-' || i || '@example.com' FROM generate_series(1, 2000) AS i;
INSERT INTO accounts (name, kind, top_level_namespace_id) SELECT n.name || '+robot-' || i, 'robot', n.id FROM top_level_namespaces n, generate_series(1, 100) AS i WHERE n.name = 'team-0000';
INSERT INTO teams (top_level_namespace_id, name, role) SELECT n.id, 'crew-' || i, 'writer' FROM top_level_namespaces n, generate_series(1, 30) AS i WHERE n.name = 'team-0000';
INSERT INTO teammembers (team_id, account_id) SELECT t.id, a.id FROM teams t, accounts a WHERE a.kind = 'user' AND a.name LIKE 'person-%' AND a.id % 30 = t.id % 30;
-- A webhook that is disabled, so that nothing is sent, with as many notices as other queues have rows.
INSERT INTO webhooks (uuid, namespace_id, title, url, secret, events, enabled) SELECT '00000000-0000-4000-9000-000000000002', id, 'build', 'https://hooks.example.com/purser', 'bench-of-webhooks-with-24-bytes', ARRAY['push'], false FROM top_level_namespaces WHERE name = 'team-0000';
INSERT INTO webhooknotices (id, webhook, event, body, created_at, attempts, delivered_at, given_up_at, last_error)
SELECT gen_random_uuid(), '00000000-0000-4000-9000-000000000002', 'push', '{"type":"push","data":{"namespace":"team-0000","name":"large"}}', now() - i * interval '1 second', 1 + i % 3,
    CASE WHEN i % 100 > 0 THEN now() END, CASE WHEN i % 100 = 0 THEN now() END, CASE WHEN i % 100 = 0 THEN 'the receiver answered 500 Internal Server Error' END
FROM generate_series(1, current_setting('bench.rows')::int) AS i;
INSERT INTO grants (top_level_namespace_id, account_id, role) SELECT n.id, a.id, 'administrator' FROM top_level_namespaces n, accounts a WHERE n.deleted_at IS NULL AND right(n.name, 1) IN ('3', '7') AND a.name = 'member';
INSERT INTO grants (top_level_namespace_id, account_id, role) SELECT n.id, a.id, 'reader' FROM top_level_namespaces n, accounts a WHERE n.name = 'team-0000' AND a.name LIKE 'person-%' AND a.id % 10 = 0;
INSERT INTO namespacequotas (namespace_id, bytes_limit, bytes, counted) SELECT id, 1000000000000, 900000000, true FROM top_level_namespaces WHERE deleted_at IS NULL AND id % 2 = 0;
INSERT INTO tagprotectionrules (uuid, namespace_id, repository_id, pattern)
SELECT gen_random_uuid(), top_level_namespace_id, id, 'release-.*' FROM repositories WHERE id % 20 = 0 AND deleted_at IS NULL;

DROP TABLE images, image_layers, made, indexes, tagged;
RESET session_replication_role;
