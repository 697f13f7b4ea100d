-- The statistics of pulls. They may be in a database of their own, so these tables refer to
-- repositories by id and have no foreign keys. Loose foreign keys delete the rows of a deleted
-- repository.

-- +goose Up
-- Counts: one row for each tag, and one for each manifest.
--
-- Policies that delete tags by the time of their last pull treat last_check_date like a pull,
-- so that no tag in use is deleted. A tag or manifest may be restored, so its row is kept for a
-- while after gone_since. The worker may read an older pull by tag of a manifest after a newer
-- one; then last_tag_pull_date keeps it from overwriting the newer pull's tag in
-- last_tag_pulled.
--
-- The columns from day on belong to the history, which is explained below.
CREATE TABLE tagpullstatistics (
    repository_id           bigint NOT NULL,
    tag_name                text COLLATE "C" NOT NULL,
    tag_pull_count          bigint NOT NULL DEFAULT 0,
    last_tag_pull_date      timestamptz,
    current_manifest_digest text,
    redis_last_processed    timestamptz,
    last_check_date         timestamptz,
    gone_since              timestamptz,
    day                     date,
    day_pulls               bigint,
    earlier_day             date,
    earlier_pulls           bigint,
    PRIMARY KEY (repository_id, tag_name)
);
COMMENT ON COLUMN tagpullstatistics.current_manifest_digest IS 'the manifest that the last pull delivered';
COMMENT ON COLUMN tagpullstatistics.redis_last_processed IS 'when pulls of the tag were last flushed from Redis';
COMMENT ON COLUMN tagpullstatistics.last_check_date IS 'when a client last asked for the tag by HEAD, or pulled it in a way that may not have been counted; exact to some minutes';
COMMENT ON COLUMN tagpullstatistics.gone_since IS 'when a worker first found that the tag doesn''t exist any more; NULL: it exists';
COMMENT ON COLUMN tagpullstatistics.day IS 'the newest day with pulls; NULL: there was no pull';
COMMENT ON COLUMN tagpullstatistics.day_pulls IS 'pulls of that day';
COMMENT ON COLUMN tagpullstatistics.earlier_day IS 'what the last count has added to tagpullhistory: a day, or NULL';
COMMENT ON COLUMN tagpullstatistics.earlier_pulls IS 'pulls that were added for earlier_day';

CREATE INDEX tagpullstatistics_last_tag_pull_date_idx ON tagpullstatistics (repository_id, last_tag_pull_date);

CREATE TABLE manifestpullstatistics (
    repository_id        bigint NOT NULL,
    manifest_digest      text COLLATE "C" NOT NULL,
    total_pull_count     bigint NOT NULL DEFAULT 0,
    last_pull_date       timestamptz,
    last_tag_pulled      text,
    last_tag_pull_date   timestamptz,
    redis_last_processed timestamptz,
    last_check_date      timestamptz,
    gone_since           timestamptz,
    day                  date,
    day_pulls            bigint,
    earlier_day          date,
    earlier_pulls        bigint,
    PRIMARY KEY (repository_id, manifest_digest)
);
COMMENT ON COLUMN manifestpullstatistics.last_tag_pulled IS 'the tag of the last pull by tag';
COMMENT ON COLUMN manifestpullstatistics.redis_last_processed IS 'when pulls of the manifest were last flushed from Redis';
COMMENT ON COLUMN manifestpullstatistics.last_tag_pull_date IS 'when the manifest was last pulled by tag';
COMMENT ON COLUMN manifestpullstatistics.last_check_date IS 'when a client last asked for the manifest by HEAD, or pulled it in a way that may not have been counted; exact to some minutes';
COMMENT ON COLUMN manifestpullstatistics.gone_since IS 'when a worker first found that the manifest doesn''t exist any more; NULL: it exists';
COMMENT ON COLUMN manifestpullstatistics.day IS 'the newest day with pulls; NULL: there was no pull';
COMMENT ON COLUMN manifestpullstatistics.day_pulls IS 'pulls of that day';
COMMENT ON COLUMN manifestpullstatistics.earlier_day IS 'what the last count has added to manifestpullhistory: a day, or NULL';
COMMENT ON COLUMN manifestpullstatistics.earlier_pulls IS 'pulls that were added for earlier_day';

CREATE INDEX manifestpullstatistics_last_pull_date_idx ON manifestpullstatistics (repository_id, last_pull_date);

-- The history of pulls says how many pulls there were on each day, in UTC: of the registry
-- (pullhistory), of a namespace, of a repository, of a tag and of a manifest. The transaction
-- that adds pulls to the statistics adds them to the history too.
--
-- For a tag or manifest, the row of its statistics has the pulls of the newest day on which it
-- was pulled (day, day_pulls). The history table has the pulls of earlier days. So counting
-- writes a row of history only when a tag or manifest is pulled for the first time on another
-- day. The UPDATE that does this returns in earlier_day and earlier_pulls what is to be added
-- to the history table. It returns them through columns because RETURNING can't return the
-- values from before the update. No other statement reads these two columns.
--
-- The history of the registry and of a namespace has the pulls of deleted repositories too, and
-- that of a repository the pulls of deleted tags and manifests.
CREATE TABLE tagpullhistory (
    repository_id bigint NOT NULL,
    tag_name      text COLLATE "C" NOT NULL,
    day           date NOT NULL,
    pulls         bigint NOT NULL,
    PRIMARY KEY (repository_id, tag_name, day)
);
CREATE INDEX tagpullhistory_day_idx ON tagpullhistory (day);

CREATE TABLE manifestpullhistory (
    repository_id   bigint NOT NULL,
    manifest_digest text COLLATE "C" NOT NULL,
    day             date NOT NULL,
    pulls           bigint NOT NULL,
    PRIMARY KEY (repository_id, manifest_digest, day)
);
CREATE INDEX manifestpullhistory_day_idx ON manifestpullhistory (day);

-- Rows of today are updated often. The free space keeps the new versions on the same pages.
CREATE TABLE repositorypullhistory (
    repository_id bigint NOT NULL,
    day           date NOT NULL,
    namespace_id  bigint NOT NULL,
    pulls         bigint NOT NULL,
    PRIMARY KEY (repository_id, day)
) WITH (fillfactor = 80);
CREATE INDEX repositorypullhistory_day_idx ON repositorypullhistory (day);
CREATE INDEX repositorypullhistory_namespace_idx ON repositorypullhistory (namespace_id, day);

CREATE TABLE namespacepullhistory (
    namespace_id bigint NOT NULL,
    day          date NOT NULL,
    pulls        bigint NOT NULL,
    PRIMARY KEY (namespace_id, day)
) WITH (fillfactor = 50);
CREATE INDEX namespacepullhistory_day_idx ON namespacepullhistory (day);

CREATE TABLE pullhistory (
    day   date PRIMARY KEY,
    pulls bigint NOT NULL
) WITH (fillfactor = 50);

-- The only row of pullstatisticsprocessingstate says up to which entry the worker of the
-- statistics has read the audit log. The transaction that adds the pulls of these entries to
-- the statistics also updates this row. The worker reads entries in the order of (xid, id);
-- xid is a transaction id of the server that has the audit log.
--
-- Operators see last_processed_timestamp, and the worker uses it if the transaction ids in the
-- audit log have started again from a lower number.
--
-- If a tag or manifest has no recorded HEAD request, clients may have sent one before
-- checks_since.
--
-- The last-used time of the pull of uncounted_at was recorded, and every later pull was
-- counted. So uncounted_at doesn't change recorded_since, on which auto-pruning relies.
CREATE TABLE pullstatisticsprocessingstate (
    id                       smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    last_processed_timestamp timestamptz,
    last_processed_log_id    bigint NOT NULL DEFAULT 0,
    last_processed_xid       xid8 NOT NULL DEFAULT '0',
    entries_counted          bigint NOT NULL DEFAULT 0,
    recorded_since           timestamptz NOT NULL,
    checks_since             timestamptz NOT NULL DEFAULT now(),
    history_since            timestamptz NOT NULL DEFAULT now(),
    uncounted_at             timestamptz,
    created_at               timestamptz NOT NULL DEFAULT now(),
    updated_at               timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN pullstatisticsprocessingstate.last_processed_timestamp IS 'the latest time of all entries that the worker has read';
COMMENT ON COLUMN pullstatisticsprocessingstate.recorded_since IS 'every use since then is recorded';
COMMENT ON COLUMN pullstatisticsprocessingstate.checks_since IS 'all processes record HEAD requests since then';
COMMENT ON COLUMN pullstatisticsprocessingstate.history_since IS 'every pull since then that was counted is in the history';
COMMENT ON COLUMN pullstatisticsprocessingstate.uncounted_at IS 'the last pull that was answered and not counted, because the recorder''s memory was full; NULL: there was none';

-- pullstatisticspending has HEAD requests by tag, and pulls by digest, that a worker has read
-- from the database. A HEAD request and a pull by digest may be the two halves of one pull of
-- a tag; for the requests in this table that isn't decided yet. A pull by digest is already
-- counted for its manifest. When all processes have written the requests that they answered
-- before this pull, the worker looks for a HEAD request that the same client sent before the
-- pull. If there is one, the worker counts the pull for the tag of the HEAD request too. Then
-- it deletes the row of the pull. id, client and port are copied from the audit log.
--
-- An entry of the audit log may stand for several pulls. So a row may stand for several pulls by
-- digest, or HEAD requests, of one client. The columns time and port are those of the first
-- request. The column later describes each further request by two varints: the microseconds
-- since the request before it, and its port.
CREATE TABLE pullstatisticspending (
    id            bigint PRIMARY KEY,
    head          boolean NOT NULL,
    client        bytea NOT NULL,
    repository_id bigint NOT NULL,
    tag           text COLLATE "C" NOT NULL,
    digest        text COLLATE "C" NOT NULL,
    time          timestamptz NOT NULL,
    port          integer NOT NULL,
    later         bytea
);
COMMENT ON COLUMN pullstatisticspending.later IS 'the requests behind the first, NULL: there are none';

CREATE INDEX pullstatisticspending_time_idx ON pullstatisticspending (head, time, id);
CREATE INDEX pullstatisticspending_client_idx ON pullstatisticspending (client) WHERE head;

-- pullrecorders has a row for each process that records pulls. A process inserts its row before
-- it answers its first request. Whoever judges tags by their last use first takes a number from
-- the sequence pullrecorders_asked, and waits until each process that runs has either answered
-- this number or has no unwritten use at all (written_to is NULL).
CREATE TABLE pullrecorders (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    instance   text NOT NULL DEFAULT '',
    redis      boolean NOT NULL,
    logged     boolean NOT NULL DEFAULT false,
    from_log   boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    reports    bigint NOT NULL DEFAULT 0,
    written_to timestamptz,
    heads_to   timestamptz,
    sent_to    timestamptz,
    answered   bigint NOT NULL DEFAULT 0,
    ended_at   timestamptz
);
COMMENT ON COLUMN pullrecorders.instance IS 'the process, for people: host name and process id';
COMMENT ON COLUMN pullrecorders.redis IS 'Redis counts the process''s pulls, so a process that can''t read Redis can''t know which tags were used';
COMMENT ON COLUMN pullrecorders.logged IS 'all pulls that the process records are in the audit log too, from which they can be counted again';
COMMENT ON COLUMN pullrecorders.from_log IS 'pulls by digest that the process answers are counted from the audit log: all processes must write their HEADs to pullheads';
COMMENT ON COLUMN pullrecorders.seen_at IS 'when the process last reported; that of a killed process only stops changing';
COMMENT ON COLUMN pullrecorders.reports IS 'the number of the process''s last report, so that a report that is executed late doesn''t replace a later one';
COMMENT ON COLUMN pullrecorders.written_to IS 'the process has written all its pulls from before this time; NULL: it has written all its pulls and last-used times, and changes the row before it answers another request';
COMMENT ON COLUMN pullrecorders.heads_to IS 'pullheads has all HEADs that the process answered before this time; NULL: it has all';
COMMENT ON COLUMN pullrecorders.sent_to IS 'Redis has all HEADs that the process answered before this time; NULL: it has all, or Redis doesn''t count';
COMMENT ON COLUMN pullrecorders.answered IS 'every use that the process answered before this number was taken from pullrecorders_asked is written';
COMMENT ON COLUMN pullrecorders.ended_at IS 'when the process ended, or another one found that it was killed; NULL: it runs';

-- Its owner says that it belongs to the statistics, for backups and moves to another database.
CREATE SEQUENCE pullrecorders_asked OWNED BY pullrecorders.answered;
-- So that the first number that is taken is greater than the number which processes read before.
SELECT setval('pullrecorders_asked', 1);

-- The only row of redisprocessingstate has the state of the flushes, which move counts from
-- Redis into the statistics. The column "owner" distinguishes this registry's Redis keys from
-- those of another registry in the same Redis.
CREATE TABLE redisprocessingstate (
    id                       bigint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    last_processed_timestamp timestamptz NOT NULL DEFAULT 'epoch',
    processing_status        text COLLATE "C" NOT NULL DEFAULT 'IDLE' CHECK (processing_status IN ('IDLE', 'PROCESSING', 'ERROR')),
    error_message            text,
    keys_processed_count     bigint NOT NULL DEFAULT 0,
    owner                    uuid NOT NULL DEFAULT gen_random_uuid(),
    flush                    bigint NOT NULL DEFAULT 0,
    redis_flush              bigint NOT NULL DEFAULT 0,
    created_at               timestamptz NOT NULL DEFAULT now(),
    updated_at               timestamptz NOT NULL DEFAULT now()
);
COMMENT ON COLUMN redisprocessingstate.last_processed_timestamp IS 'when the last complete flush began';
COMMENT ON COLUMN redisprocessingstate.flush IS 'the number of the newest flush';
COMMENT ON COLUMN redisprocessingstate.redis_flush IS 'the newest flush that Redis was told of: a Redis that remembers an older one has lost data';

INSERT INTO redisprocessingstate DEFAULT VALUES;

-- A counter in Redis grows as long as it exists, and redispullcounters says how much of each
-- counter the statistics have. A flush adds the difference to the statistics, so a flush may
-- be repeated, and two flushes may run at once.
CREATE TABLE redispullcounters (
    id         uuid PRIMARY KEY,
    born       bigint NOT NULL,
    counted    bigint NOT NULL,
    seq        bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE redispullcounters IS 'what the statistics have of each counter in Redis';
COMMENT ON COLUMN redispullcounters.id IS 'the first 16 bytes of the SHA-256 of the counter''s key in Redis';
COMMENT ON COLUMN redispullcounters.born IS 'the sequence number of the counter''s first pull: a counter that was deleted and made again has a greater one';
COMMENT ON COLUMN redispullcounters.counted IS 'how many of the counter''s pulls are in the statistics';
COMMENT ON COLUMN redispullcounters.seq IS 'the sequence number of the last pull that is in the statistics';
COMMENT ON COLUMN redispullcounters.updated_at IS 'when a flush last found the counter in Redis';
