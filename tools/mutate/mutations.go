package main

const (
	quotasSQL   = "internal/db/routines/quotas.sql"
	holdsSQL    = "internal/db/routines/holds.sql"
	manifestSQL = "internal/catalog/put_manifest.sql"
	trashGo     = "internal/catalog/trash.go"
	lifetimeGo  = "internal/catalog/lifetime.go"
	uploadsGo   = "internal/catalog/uploads.go"
	deleteGo    = "internal/catalog/delete.go"
	tasksGo     = "internal/autoprune/tasks.go"
	tagsGo      = "internal/autoprune/delete_tags.go"

	catalog   = "./internal/catalog"
	gc        = "./internal/gc"
	hold      = "./internal/hold"
	autoprune = "./internal/autoprune"
)

// mutations of the statements that lock, or look once more.
var mutations = []mutation{
	{"auto-prune: look for required reporters in the deletion", "internal/autoprune/rests.go",
		`	if err == nil && len(absent) > 0 {
		return errOutdated
	}`, ``,
		autoprune, "TestReporterEndsDuringRun"},
	// quotas
	{"quota: look into the locked slot", quotasSQL,
		`AND s.slot = mine AND purser_quota_fits(s, more_bytes, more_repositories, more_tags);`, `AND s.slot = mine;`,
		catalog, "TestQuotaRoomIsAskedOfTheLockedSlot"},
	{"quota: renewing waits for who takes the promise back", "internal/catalog/upload_room.go",
		`WHERE id = $1 AND attempt = $2 AND status = 1 AND promised_until > now()
			RETURNING`, `WHERE id = $1 AND attempt = $2 AND status = 1
			RETURNING`,
		catalog, "TestPromiseIsRenewedOrTakenBack"},
	{"quota: promises of locked uploads count", quotasSQL,
		`AND o.promised_until < now() FOR NO KEY UPDATE SKIP LOCKED) dead`, `AND o.promised_until < now()) dead`,
		catalog, "TestPromiseIsRenewedOrTakenBack"},
	{"quota: lock of the row before the slots", quotasSQL,
		`    PERFORM FROM namespacequotas WHERE namespace_id = namespace FOR NO KEY UPDATE;`, ``,
		catalog, "TestQuotaLocksRowBeforeSlots"},
	{"quota: lock of the slots that are added up", quotasSQL,
		`    PERFORM FROM namespacequotaslots WHERE namespace_id = namespace ORDER BY slot FOR NO KEY UPDATE;`, ``,
		catalog, "TestQuotaAddsUpLockedSlots"},
	{"quota: lock of a blob in a namespace", quotasSQL,
		`        PERFORM pg_advisory_xact_lock(key)
        FROM`, `        PERFORM key
        FROM`,
		catalog, "TestQuotaRowIsLockedFirst"},
	{"quota: shared lock of a namespace's blobs", quotasSQL,
		`PERFORM pg_advisory_xact_lock_shared(hashtextextended('quota', n))`, `PERFORM n`,
		catalog, "TestQuotaOfFewAndManyBlobs"},
	{"quota: lock of all of a namespace's blobs", quotasSQL,
		`PERFORM pg_advisory_xact_lock(hashtextextended('quota', n))`, `PERFORM n`,
		catalog, "TestQuotaOfFewAndManyBlobs"},
	{"quota: lock of promises to uploads", quotasSQL,
		`    PERFORM pg_advisory_xact_lock(hashtextextended('uploads', id_of));`, ``,
		catalog, "TestQuotaPromisesOneAfterAnother"},
	{"quota: one blob beyond the limit at a time", quotasSQL,
		`u.id <> upload AND u.expected > 0 AND u.promised_until IS NOT NULL))`, `u.id <> upload AND false))`,
		catalog, "TestRoomForKnownBlob"},
	{"quota: uploads without a request are in nobody's way", quotasSQL,
		`u.id <> upload AND u.expected > 0 AND u.promised_until IS NOT NULL))`, `u.id <> upload))`,
		catalog, "TestRoomForKnownBlobBesideUploadAtRest"},
	{"quota: slots are closed when limits change", "internal/catalog/quotas.go",
		`SELECT purser_quota_close($1)`, `SELECT $1::bigint`,
		catalog, "TestQuotaOfLoweredLimits"},
	{"quota: slots are closed when the content is counted", "internal/catalog/quota_count.go",
		`SELECT purser_quota_close($1)`, `SELECT $1::bigint`,
		catalog, "TestQuotaOfLoweredLimits"},
	{"quota: two that count at once", "internal/catalog/quota_count.go",
		` AND counts = @counts`, ` AND counts >= @counts`,
		catalog, "TestQuotaIsCountedOnce"},
	{"quota: wait for writers", "internal/catalog/quota_count.go",
		`for err == nil && len(ids) > 0 {`, `for err == nil && len(ids) > 1000 {`,
		catalog, "TestCountWaitsForWriters"},
	{"quota: lock of the steps that are told", "internal/catalog/quota_notices.go",
		` ORDER BY id FOR UPDATE SKIP LOCKED`, ` ORDER BY id`,
		catalog, "TestQuotasAreToldOnce"},
	{"quota: look at what is used once the steps are locked", "internal/catalog/quota_notices.go",
		`	q, err = quotaAgain(ctx, tx, q)`, ``,
		catalog, "TestQuotasAreToldOnce"},

	// the trash
	{"trash: restoring locks the namespace", trashGo,
		`FOR UPDATE OF r FOR KEY SHARE OF n`, `FOR UPDATE OF r`,
		catalog, "TestRestoreAgainstRemoval"},
	{"trash: restoring locks the repository", trashGo,
		`FOR UPDATE OF r FOR KEY SHARE OF n`, `FOR KEY SHARE OF n`,
		catalog, "TestRestoreAgainst"},
	{"trash: restoring locks a namespace", trashGo,
		`n.deleted_at IS NOT NULL FOR UPDATE OF n`, `n.deleted_at IS NOT NULL`,
		catalog, "TestRestoreAgainst"},
	{"trash: purging asks whether it was restored", trashGo,
		`DELETE FROM repositories WHERE id = @id AND deleted_at IS NOT NULL`, `DELETE FROM repositories WHERE id = @id`,
		catalog, "TestRestoreAgainstPurge"},
	{"trash: purging asks whether the namespace was restored", trashGo,
		`DELETE FROM top_level_namespaces WHERE id = @id AND deleted_at IS NOT NULL`, `DELETE FROM top_level_namespaces WHERE id = @id`,
		catalog, "TestRestoreAgainstPurge"},
	{"trash: deletion locks the repository", lifetimeGo,
		`n.deleted_at IS NULL FOR UPDATE OF r`, `n.deleted_at IS NULL`,
		catalog, "TestDeletionSeesHeldPush"},
	{"trash: deletion locks the namespace", lifetimeGo,
		`SELECT id FROM live_namespaces WHERE name = $1 FOR UPDATE`, `SELECT id FROM live_namespaces WHERE name = $1`,
		catalog, "TestDeletionSeesHeldPush"},
	{"trash: a push of a new manifest locks repository and namespace", manifestSQL,
		"AND r.path = @path AND r.deleted_at IS NULL\n\tFOR KEY SHARE) alive;", "AND r.path = @path AND r.deleted_at IS NULL) alive;",
		catalog, "TestPutDuringDeletion|TestAttackRepositoryGoes"},
	{"trash: other writes lock repository and namespace", "internal/catalog/batch.go",
		"FOR KEY SHARE) alive", ") alive",
		catalog, "TestTrashLateWrites|TestTrashWaitsForPushes|TestRestoreInDyingRepository|TestUploadOfDeletedRepository"},

	{"uploads: what is saved belongs to the repository", uploadsGo,
		`AND purser_upload_belongs(@path, COALESCE(namespace_id, @namespace), COALESCE(repository_id, @repository))
			RETURNING attempt, CASE`, `AND (true OR purser_upload_belongs(@path, COALESCE(namespace_id, @namespace), COALESCE(repository_id, @repository)))
			RETURNING attempt, CASE`,
		"./internal/server/distribution", "TestRunningUploadOfDeletedRepository"},
	{"uploads: what is committed belongs to the repository", uploadsGo,
		`AND COALESCE(namespace_id, @home_namespace) IN (0, @namespace) AND COALESCE(repository_id, @home_repository) IN (0, @repository)
			FOR UPDATE`, `AND (true OR COALESCE(namespace_id, @home_namespace) IN (0, @namespace) AND COALESCE(repository_id, @home_repository) IN (0, @repository))
			FOR UPDATE`,
		"./internal/server/distribution", "TestRunningUploadOfDeletedRepository"},
	{"uploads: deletion of a repository ends those that know only its path", lifetimeGo,
		`WHERE repository = $1 AND repository <> ''`, `WHERE repository = $1 AND repository = ''`,
		"./internal/server/distribution", "TestUploadsBeforeTheirRepository"},
	{"uploads: deletion of a namespace ends those that know only their path", lifetimeGo,
		`			AND repository <> '' AND`, `			AND repository = '' AND`,
		"./internal/server/distribution", "TestUploadsBeforeTheirRepository"},

	// holds
	{"hold: lock of deletions", holdsSQL,
		`SELECT pg_advisory_xact_lock_shared(1886745447, 0)`, `SELECT`,
		gc, "TestRaceReportDuringReview"},
	{"hold: a report waits for deletions", "internal/hold/report.go",
		`SELECT pg_advisory_xact_lock(1886745447, 0)`, `SELECT`,
		gc, "TestRaceReportDuringReview"},
	{"hold: pruning takes the lock of deletions", tagsGo,
		`b.Queue("SELECT purser_holds_lock()")`, `b.Queue("SELECT")`,
		autoprune, "TestReportWaitsForDeletion"},
	{"hold: deleting a tag takes the lock of deletions", deleteGo,
		"b.lockHolds()\n\tb.exec(\"SELECT FROM tags", "b.exec(\"SELECT FROM tags",
		catalog, "TestReportWaitsForDeletions"},
	{"hold: deleting a manifest takes the lock of deletions", deleteGo,
		"b.lockHolds()\n\tb.guard(nil, `", "b.guard(nil, `",
		catalog, "TestReportWaitsForDeletions"},
	{"hold: deleting a repository takes the lock of deletions", lifetimeGo,
		"FOR UPDATE OF r`, path)\n\tb.lockHolds()", "FOR UPDATE OF r`, path)",
		catalog, "TestReportWaitsForDeletions"},
	{"hold: deleting a namespace takes the lock of deletions", lifetimeGo,
		"FOR UPDATE\", name)\n\tb.lockHolds()", "FOR UPDATE\", name)",
		catalog, "TestReportWaitsForDeletions"},
	{"hold: a report locks its reporter", "internal/hold/owner.go",
		`AND name = $2 FOR UPDATE`, `AND name = $2`,
		hold, "TestReportsAtOnce"},
	{"hold: a report locks its namespace", "internal/hold/hold.go",
		`sql += " FOR KEY SHARE"`, `sql += ""`,
		hold, "TestReportMeetsDeletion"},
	{"hold: lock of those that make reporters", "internal/hold/owner.go",
		`SELECT pg_advisory_xact_lock(1886745448, hashint8(COALESCE($1::bigint, 0)))`, `SELECT $1::bigint`,
		hold, "TestLastPlaceAtOnce"},

	// protection
	{"protection: deleting a tag asks whether rules have changed", deleteGo,
		"WHEN (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM @rules", "WHEN @rules::text IS NULL",
		catalog, "TestProtectionIsExact"},
	{"protection: deleting a manifest asks whether rules have changed", deleteGo,
		"WHEN (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM $4", "WHEN $4::text IS NULL",
		catalog, "TestProtectionIsExact"},
	{"protection: deleting a manifest asks whether it got a tag", deleteGo,
		"WHEN NOT t.names <@ $5::text[]", "WHEN NOT t.names <@ $5::text[] AND false",
		catalog, "TestRaceTagOfDeletedManifest"},
	{"protection: changing rules raises their version", "internal/catalog/protection.go",
		`UPDATE settings SET value = (value::bigint + 1)::text WHERE name = 'tag_protection_version'`,
		`UPDATE settings SET value = value WHERE name = 'tag_protection_version'`,
		catalog, "TestProtectionIsExact|TestProtectedTags"},

	// pruning
	{"prune: a sleeper has lost its lease", tasksGo,
		`WHERE namespace_id = $1 AND lease = $2 FOR NO KEY UPDATE`, `WHERE namespace_id = $1 AND $2::uuid IS NOT NULL FOR NO KEY UPDATE`,
		autoprune, "TestSleeperChangesNothing"},
	{"prune: a sleeper that deletes has lost its lease", tasksGo,
		`WHERE namespace_id = $1 AND lease = $2 RETURNING policies_version, clock_timestamp()`,
		`WHERE namespace_id = $1 AND $2::uuid IS NOT NULL RETURNING policies_version, clock_timestamp()`,
		autoprune, "TestSleeperChangesNothing"},
	{"prune: policies may have changed", tasksGo,
		`if now != t.versions {`, `if now != t.versions && now == (versions{}) {`,
		autoprune, "TestWhatChangesAfterTheSelection|TestKeepRuleSavedMeanwhile"},
	{"prune: lock of the versions of policies", tasksGo,
		`'tag_protection_version') ORDER BY name FOR SHARE`, `'tag_protection_version') ORDER BY name`,
		autoprune, "TestWhatChangesAfterTheSelection|TestHeldPolicies|TestKeepRuleSavedMeanwhile"},
	{"prune: lock of the repository", tagsGo,
		"n.id = r.top_level_namespace_id)\n\t\tFOR KEY SHARE OF r", "n.id = r.top_level_namespace_id)",
		autoprune, "TestRepositoryThatGoes"},
	{"prune: a tag that became immutable stays", tagsGo,
		" AND NOT immutable\n", "\n",
		autoprune, "TestImmutableTagsStay"},
	{"prune: a tag in somebody's hands stays", tagsGo,
		"FOR UPDATE SKIP LOCKED) t\n", "FOR UPDATE) t\n",
		autoprune, "TestTagInSomebodysHandsStays"},
	{"prune: a tag that was pushed again stays", tagsGo,
		`AND (id, manifest_id, COALESCE(updated_at, created_at)) IS NOT DISTINCT FROM (w.id, w.manifest_id, w.pushed) AND NOT immutable
				FOR UPDATE`, `AND (w.id, w.manifest_id, w.pushed) IS NOT NULL AND NOT immutable
				FOR UPDATE`,
		autoprune, "TestWhatChangesAfterTheSelection|TestMovedTagStays"},
	{"prune: lock of images whose attached tags go", tagsGo,
		"ORDER BY id LIMIT 1 FOR UPDATE) m`", "ORDER BY id LIMIT 1) m`",
		autoprune, "TestHeldImages|TestAttached"},
	{"prune: no push comes between look and deletion", tagsGo,
		`SELECT FROM repositories WHERE id = $1 FOR UPDATE`, `SELECT FROM repositories WHERE id = $1`,
		autoprune, "TestAttachedTagAwaitsItsImage|TestHeldRepository|TestOrphanIsAttachedAgain"},
	{"prune: two workers claim one task", tasksGo,
		"ORDER BY last_ran_ms NULLS FIRST LIMIT 1\n\t\t\tFOR UPDATE SKIP LOCKED", "ORDER BY last_ran_ms NULLS FIRST LIMIT 1",
		autoprune, "TestTaskThatIsBeingClaimed"},
	{"prune: new policies wait for deletions", "internal/autoprune/untagged.go",
		`b.Queue("SELECT pg_advisory_xact_lock(1886745447, 0)")`, `b.Queue("SELECT")`,
		autoprune, "TestPolicyWaitsForDeletions"},
	{"prune: undoing locks the manifests", "internal/catalog/restore_tags.go",
		"ORDER BY digest LIMIT 1 FOR KEY SHARE) m`", "ORDER BY digest LIMIT 1) m`",
		autoprune, "TestUndoWhileAManifestGoes"},
	{"prune: last look for uses", "internal/autoprune/last_look.go",
		`if l.settled.IsZero() || len(tags) == 0 {`, `if true {`,
		autoprune, "TestDeletionLooksForUses"},
}
