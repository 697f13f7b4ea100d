-- This file has the statements that store a new manifest or tag an existing one. putNew and
-- putExisting (put_manifest.go) send the statements in this order as one batch: one round
-- trip, one transaction. The statements take their locks in the order that the package comment
-- gives. When one statement refuses, the statements after it change nothing (see batch.go).
-- OFFSET 0 in these statements makes PostgreSQL look rows up by an index: see "Plans" in
-- package db.
--
-- @namespace, @repository   ids of the repository          @digest   the manifest
-- @path                     name of the repository         @tags     names, sorted; may be empty
-- @kind                     kind of the audit entries      @created, @times   of an import: when another
--                                                          registry got the manifest, and each tag
-- @expires_after            seconds after which the tags expire, NULL: never; not for those in @undated
-- @immutable                nobody may move or delete the tags from now on
-- @keep_tags                labels decide nothing about tags that exist: the client may not change these
-- @labels_ignored           for the audit entries: why a label of the image doesn't count; NULL: none

-- name: lock_repository
-- Locks the rows of the repository and of its namespace against deletion. It refuses the put
-- if either row was deleted: the deletion couldn't see the rows that this put inserts, and
-- would leave them behind. Then it takes an advisory lock for each tag and so waits for other
-- puts of the same tags. Row locks don't suffice: a tag that doesn't exist yet has no row, so
-- two puts that create it would notice each other only after both had inserted a manifest, and
-- one would be rolled back. 1886745443 is the key space of these advisory locks.
SELECT (
	SELECT count(pg_advisory_xact_lock(1886745443, key)) FROM (
		SELECT DISTINCT hashtext(@repository::bigint || ':' || name) AS key FROM unnest(@tags::text[]) AS name ORDER BY key) k),
	CASE WHEN count(*) <> 1 THEN purser_refuse('the repository was deleted meanwhile') END
FROM (
	SELECT FROM live_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
	WHERE n.id = @namespace AND r.id = @repository AND r.path = @path AND r.deleted_at IS NULL
	FOR KEY SHARE) alive;

-- name: lock_blobs
-- @blobs are the manifest's configuration and layers. The statement locks their rows in the
-- table blobs against deletion. If one of these blobs was deleted, or is marked as lost from
-- the store, the statement refuses the put.
SELECT CASE WHEN count(*) <> cardinality(@blobs::bytea[]) THEN purser_refuse('the repository lacks a blob') END
FROM (
	SELECT FROM (SELECT digest FROM unnest(@blobs::bytea[]) AS digest WHERE purser_accepted() ORDER BY digest) want
	CROSS JOIN LATERAL (SELECT FROM blobs WHERE digest = want.digest AND lost_at IS NULL FOR KEY SHARE) b) locked;

-- name: lock_links
-- Locks the rows of the table repository_blobs that link @blobs to the repository. If a link
-- is missing, the statement refuses the put.
SELECT CASE WHEN count(*) <> cardinality(@blobs::bytea[]) THEN purser_refuse('the repository lacks a blob') END
FROM (
	SELECT FROM (SELECT digest FROM unnest(@blobs::bytea[]) AS digest WHERE purser_accepted() ORDER BY digest) want
	CROSS JOIN LATERAL (
		SELECT FROM repository_blobs
		WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND blob_digest = want.digest
		FOR KEY SHARE) l) locked;

-- name: lock_children
-- @children are the manifests that an index lists. The statement locks those that exist in the
-- repository. It refuses the put if it finds fewer than @required, which is the number of all
-- children, or 0 if the configuration allows sparse indexes.
SELECT CASE WHEN count(*) < @required THEN purser_refuse('the repository lacks a manifest of the index') END
FROM (
	SELECT FROM (SELECT digest FROM unnest(@children::bytea[]) AS digest WHERE purser_accepted() ORDER BY digest) want
	CROSS JOIN LATERAL (
		SELECT FROM manifests
		WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = want.digest
		FOR KEY SHARE) m) locked;

-- name: lock_subject
-- Locks the manifest @subject, to which the new manifest refers as its subject, if it exists;
-- it need not. If another transaction is deleting the subject, this statement waits for the
-- end of that transaction. A deletion queues the subject's referrers for review, but not the
-- new manifest, which it can't see. The new manifest gets a review of its own; the deletion
-- must have ended before that review, so that the review finds the subject deleted.
SELECT FROM manifests
WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = @subject AND purser_accepted()
FOR KEY SHARE;

-- name: lock_digest
-- Locks the manifest @digest if it exists already. If it doesn't, the statement takes an
-- advisory lock on the digest instead, so that no review deletes a manifest that names @digest
-- as its subject. Before a review deletes such a referrer, gc.lockSubjects tries to take the
-- same lock, and postpones the review if a put has it. 1886745444 is the key space of these
-- advisory locks.
WITH there AS MATERIALIZED (
	SELECT FROM manifests
	WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = @digest AND purser_accepted()
	FOR KEY SHARE
)
SELECT pg_advisory_xact_lock(1886745444, hashtext(@repository::bigint || ':' || encode(@digest::bytea, 'hex')))
WHERE NOT EXISTS (SELECT FROM there) AND purser_accepted();

-- name: lock_tags
-- Locks the tags that exist.
SELECT FROM (SELECT name FROM unnest(@tags::text[]) AS name WHERE purser_accepted() ORDER BY name COLLATE "C") want
CROSS JOIN LATERAL (
	SELECT FROM tags
	WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = want.name
	FOR UPDATE) t;

-- name: lock_reviews
-- Locks the rows in gc_manifest_review_queue of the manifests to which these tags point so
-- far, since moving the tags will queue those manifests for review.
SELECT FROM (
	SELECT DISTINCT t.manifest_id AS id FROM unnest(@tags::text[]) AS want (name)
	CROSS JOIN LATERAL (
		SELECT manifest_id FROM tags
		WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = want.name OFFSET 0) t
	WHERE purser_accepted() ORDER BY id) loses
CROSS JOIN LATERAL (
	SELECT FROM gc_manifest_review_queue
	WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND manifest_id = loses.id
	FOR UPDATE) q;

-- name: insert_manifest
-- Inserts the manifest with its layers, references, tags and audit entries, or nothing if the
-- manifest exists. One statement inserts manifest and tags, so that the trigger that queues
-- untagged manifests for review sees the tags.
--
-- insert_manifest refuses the put, before it writes anything, in three cases: the protection
-- rules have another version than @rules, with which the caller has computed @protected; one
-- of the tags in @protected, or an immutable one, exists and points to another manifest; or the request's
-- precondition (@if_match, @if_no_match) doesn't hold. The precondition is about the tag
-- @condition_tag or, if @condition_tag is '', about the manifest.
--
-- The CTE "previous" reads the manifests to which the tags point so far. lock_tags has locked
-- the tags that existed, so "previous" is right for these tags. But a transaction that doesn't
-- take the advisory locks of puts may meanwhile have created a tag that didn't exist, and may
-- be moving or deleting this tag right now. If a tag differs from "previous", the statement
-- doesn't write the tag. Its last lines then raise a serialization failure, and the put runs
-- again.
WITH previous AS (
	-- those of @tags that exist, each with the manifest to which it points
	SELECT t.name, t.manifest_id, t.expires_at, t.immutable, p.digest FROM unnest(@tags::text[]) AS want (name)
	CROSS JOIN LATERAL (
		SELECT name, manifest_id, expires_at, immutable FROM tags
		WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = want.name OFFSET 0) t
	CROSS JOIN LATERAL (
		SELECT digest FROM manifests
		WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND id = t.manifest_id OFFSET 0) p
), asked AS MATERIALIZED (
	SELECT CASE
		WHEN (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM @rules
			THEN purser_refuse('the rules that protect tags were changed meanwhile')
		WHEN EXISTS (SELECT FROM previous p WHERE p.digest <> @digest AND (p.immutable OR p.name = ANY (@protected::text[])))
			THEN purser_refuse('the tag is protected')
		WHEN NOT purser_condition_holds(
				CASE WHEN @condition_tag::text <> '' THEN (SELECT p.digest FROM previous p WHERE p.name = @condition_tag)
				ELSE (SELECT digest FROM manifests
					WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = @digest) END,
				@if_match::bytea[], @if_no_match::bytea[])
			THEN purser_refuse('the condition of the request does not hold') END AS refusal
	WHERE purser_accepted()
), accepted AS MATERIALIZED (
	SELECT FROM asked WHERE refusal IS NULL
), sizes AS MATERIALIZED (
	SELECT own.digest, b.size FROM unnest(@blobs::bytea[]) AS own (digest)
	CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = own.digest OFFSET 0) b
), m AS (
	-- total_size is the sum of the sizes of the payload, of the blobs and, for an index, of
	-- its children's payloads, at most the largest bigint. The statements before have locked
	-- the rows of these blobs and children.
	INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, artifact_type,
		subject_digest, configuration_blob_digest, configuration_blob_size, annotations, payload, created_at, total_size)
	SELECT @namespace, @repository, @digest, @media_type, @artifact_type, @subject, @config,
		(SELECT size FROM sizes WHERE digest = @config::bytea LIMIT 1), @annotations, @payload, LEAST(@created::timestamptz, now()),
		LEAST(octet_length(@payload::bytea)::numeric
			+ COALESCE((SELECT sum(size) FROM sizes), 0)
			+ COALESCE((SELECT sum(c.size) FROM unnest(@children::bytea[]) AS child (digest)
				CROSS JOIN LATERAL (
					SELECT octet_length(payload) AS size FROM manifests
					WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = child.digest OFFSET 0) c), 0),
			9223372036854775807)::bigint
	FROM accepted
	ON CONFLICT (top_level_namespace_id, repository_id, digest) DO NOTHING
	RETURNING id
), l AS (
	INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type, blob_size)
	SELECT @namespace, @repository, m.id, d.digest, d.size, d.media_type, (SELECT size FROM sizes WHERE digest = d.digest LIMIT 1)
	FROM m, unnest(@layers::bytea[], @layer_sizes::bigint[], @layer_types::text[]) AS d (digest, size, media_type)
), r AS (
	INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
	SELECT @namespace, @repository, m.id, c.id
	FROM m, unnest(@children::bytea[]) AS child (digest)
	CROSS JOIN LATERAL (
		SELECT id FROM manifests
		WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = child.digest OFFSET 0) c
), missing AS (
	INSERT INTO missing_children (top_level_namespace_id, repository_id, parent_id, child_digest)
	SELECT @namespace, @repository, m.id, child.digest FROM m, unnest(@children::bytea[]) AS child (digest)
	WHERE NOT EXISTS (
		SELECT FROM manifests
		WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = child.digest OFFSET 0)
), t AS (
	INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at, expires_at, immutable)
	SELECT @namespace, @repository, name, m.id, LEAST(at, pushed),
		CASE WHEN @expires_after::float8 IS NOT NULL AND NOT @immutable::boolean AND name <> ALL (@undated::text[])
			THEN purser_time() + make_interval(secs => @expires_after::float8) END,
		@immutable
	FROM m, unnest(@tags::text[], @times::timestamptz[]) AS want (name, at), purser_push_time(@namespace, @repository) AS pushed
	ON CONFLICT (top_level_namespace_id, repository_id, name) DO UPDATE
	SET manifest_id = EXCLUDED.manifest_id, updated_at = EXCLUDED.created_at,
		expires_at = CASE WHEN NOT tags.immutable AND NOT @keep_tags::boolean THEN EXCLUDED.expires_at END,
		immutable = tags.immutable OR EXCLUDED.immutable AND NOT @keep_tags
	WHERE tags.manifest_id = (SELECT p.manifest_id FROM previous p WHERE p.name = EXCLUDED.name)
	RETURNING name, updated_at IS NOT NULL AS moved, expires_at, immutable
), logged AS (
	INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, digest, tag, detail)
	SELECT e.kind, @actor, @address, @user_agent, @request_id, split_part(@path, '/', 1), @path, @repository, @digest, e.tag,
		NULLIF(jsonb_strip_nulls(jsonb_build_object('previous_digest', purser_digest_text(e.previous))
			|| CASE WHEN e.kind <> 'move_tag' THEN jsonb_build_object('expiration_date', e.expires, 'old_expiration_date', e.expired,
				'immutable', NULLIF(e.immutable, false), 'labels_ignored', @labels_ignored::text) ELSE '{}' END), '{}')
	FROM (
		-- an audit entry for each tag, and a single entry for a push without tags; with the @kind
		-- create_tag, one for each tag that is new
		SELECT @kind::text AS kind, t.name AS tag, NULL::bytea AS previous,
			t.expires_at AS expires, p.expires_at AS expired, t.immutable AND p.immutable IS NOT TRUE AS immutable
		FROM m LEFT JOIN t ON true LEFT JOIN previous p ON p.name = t.name
		WHERE @kind::text <> 'create_tag' OR t.name IS NOT NULL AND p.name IS NULL
		UNION ALL
		SELECT 'move_tag', t.name, p.digest, NULL, NULL, NULL FROM t JOIN previous p ON p.name = t.name) e
)
SELECT EXISTS (SELECT FROM m),
	purser_require((SELECT count(*) FROM m, unnest(@tags::text[]) AS name) = (
		SELECT count(*) FROM t LEFT JOIN previous p ON p.name = t.name WHERE t.moved = (p.name IS NOT NULL)), '40001'),
	(SELECT refusal FROM asked);

-- putExisting sends the following statements, after lock_repository, if the repository has the
-- manifest already.

-- name: lock_manifest
-- Locks the manifest @digest against deletion. If the manifest was deleted, the statement
-- refuses the put.
SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('the manifest was deleted meanwhile') END
FROM (
	SELECT FROM manifests
	WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = @digest
	FOR KEY SHARE) locked;

-- name: promise_manifest
-- For a put without tags: promises the client that the manifest stays for the review delay, by
-- a row in gc_manifest_review_queue that postpones the manifest's review.
INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event)
SELECT top_level_namespace_id, repository_id, id, gc_review_after('manifest_upload'), 'manifest_upload'
FROM manifests
WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = @digest AND purser_accepted()
ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
	review_after = GREATEST(q.review_after, EXCLUDED.review_after), review_count = 0, set_aside_at = NULL;

-- name: point_tags
-- Points the tags to the manifest; putExisting sends lock_digest, lock_tags and lock_reviews
-- before it. A tag that points to the manifest already counts as pushed again. The CTEs
-- "previous", "asked" and "t" are the same as in insert_manifest, with the same refusals and
-- the same serialization failure.
--
-- @kind is the kind of the audit entries:
--   push_repo   one entry for each tag
--   create_tag  one entry for each tag that is new
--   revert_tag  one entry for each tag, with the previous digest if the tag pointed elsewhere
-- With push_repo and create_tag, each tag that pointed to another manifest also gets an entry
-- of the kind move_tag.
WITH previous AS (
	SELECT t.name, t.manifest_id, t.expires_at, t.immutable, p.digest FROM unnest(@tags::text[]) AS want (name)
	CROSS JOIN LATERAL (
		SELECT name, manifest_id, expires_at, immutable FROM tags
		WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = want.name OFFSET 0) t
	CROSS JOIN LATERAL (
		SELECT digest FROM manifests
		WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND id = t.manifest_id OFFSET 0) p
), asked AS MATERIALIZED (
	SELECT CASE
		WHEN (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM @rules
			THEN purser_refuse('the rules that protect tags were changed meanwhile')
		WHEN EXISTS (SELECT FROM previous p WHERE p.digest <> @digest AND (p.immutable OR p.name = ANY (@protected::text[])))
			THEN purser_refuse('the tag is protected')
		WHEN NOT purser_condition_holds(
				CASE WHEN @condition_tag::text <> '' THEN (SELECT p.digest FROM previous p WHERE p.name = @condition_tag)
				ELSE (SELECT digest FROM manifests
					WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = @digest) END,
				@if_match::bytea[], @if_no_match::bytea[])
			THEN purser_refuse('the condition of the request does not hold') END AS refusal
	WHERE purser_accepted()
), accepted AS MATERIALIZED (
	SELECT FROM asked WHERE refusal IS NULL
), m AS (
	SELECT id FROM accepted, manifests
	WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND digest = @digest
), t AS (
	INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at, expires_at, immutable)
	SELECT @namespace, @repository, name, m.id, LEAST(at, pushed),
		CASE WHEN @expires_after::float8 IS NOT NULL AND NOT @immutable::boolean AND name <> ALL (@undated::text[])
			THEN purser_time() + make_interval(secs => @expires_after::float8) END,
		@immutable
	FROM m, unnest(@tags::text[], @times::timestamptz[]) AS want (name, at), purser_push_time(@namespace, @repository) AS pushed
	ORDER BY name COLLATE "C"
	ON CONFLICT (top_level_namespace_id, repository_id, name) DO UPDATE
	SET manifest_id = EXCLUDED.manifest_id, updated_at = EXCLUDED.created_at,
		expires_at = CASE WHEN NOT tags.immutable AND NOT @keep_tags::boolean THEN EXCLUDED.expires_at END,
		immutable = tags.immutable OR EXCLUDED.immutable AND NOT @keep_tags
	WHERE tags.manifest_id = (SELECT p.manifest_id FROM previous p WHERE p.name = EXCLUDED.name)
	RETURNING name, updated_at IS NOT NULL AS moved, expires_at, immutable
), logged AS (
	INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, digest, tag, detail)
	SELECT e.kind, @actor, @address, @user_agent, @request_id, split_part(@path, '/', 1), @path, @repository, @digest, e.tag,
		NULLIF(jsonb_strip_nulls(jsonb_build_object('previous_digest', purser_digest_text(e.previous))
			|| CASE WHEN e.kind <> 'move_tag' THEN jsonb_build_object('expiration_date', e.expires, 'old_expiration_date', e.expired,
				'immutable', NULLIF(e.immutable, false), 'labels_ignored', @labels_ignored::text) ELSE '{}' END), '{}')
	FROM (
		SELECT @kind::text AS kind, t.name AS tag,
			CASE WHEN @kind::text = 'revert_tag' AND p.manifest_id <> m.id THEN p.digest END AS previous,
			t.expires_at AS expires, p.expires_at AS expired, t.immutable AND p.immutable IS NOT TRUE AS immutable
		FROM m LEFT JOIN t ON true LEFT JOIN previous p ON p.name = t.name
		WHERE @kind::text <> 'create_tag' OR t.name IS NOT NULL AND p.name IS NULL
		UNION ALL
		SELECT 'move_tag', t.name, p.digest, NULL, NULL, NULL
		FROM m CROSS JOIN t JOIN previous p ON p.name = t.name
		WHERE @kind::text <> 'revert_tag' AND p.manifest_id <> m.id) e
)
SELECT purser_require((SELECT count(*) FROM m, unnest(@tags::text[]) AS name) = (
		SELECT count(*) FROM t LEFT JOIN previous p ON p.name = t.name WHERE t.moved = (p.name IS NOT NULL)), '40001'),
	(SELECT refusal FROM asked);
