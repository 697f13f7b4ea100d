-- pullstatisticspending has HEAD requests by tag, and pulls by digest, that a worker has read
-- from the database. A HEAD request and a pull by digest may be the two halves of one pull of
-- a tag; for the requests in this table that isn't decided yet. A pull by digest is already
-- counted for its manifest. When all processes have written the requests that they answered
-- before this pull, the worker looks for a HEAD request that the same client sent before the
-- pull. If there is one, the worker counts the pull for the tag of the HEAD request too. Then
-- it deletes the row of the pull. id, client and port are copied from the audit log.
--
-- pullrecorders has a row for each process that records pulls.
-- written_to  the process has written all its pulls from before this time; NULL: it has
--             written all its pulls
-- ended_at    set when the process ends normally; the row of a killed process only stops
--             changing
-- redis       Redis counts the process's pulls, so a process that can't read Redis can't know
--             which tags were used
-- logged      all pulls that the process records are in the audit log too, from which they
--             can be counted again

-- +goose Up
CREATE TABLE pullstatisticspending (
    id            bigint PRIMARY KEY,
    head          boolean NOT NULL,
    client        bytea NOT NULL,
    repository_id bigint NOT NULL,
    tag           text COLLATE "C" NOT NULL,
    digest        text COLLATE "C" NOT NULL,
    time          timestamptz NOT NULL,
    port          integer NOT NULL
);

CREATE INDEX pullstatisticspending_time_idx ON pullstatisticspending (head, time, id);
CREATE INDEX pullstatisticspending_client_idx ON pullstatisticspending (client) WHERE head;

CREATE TABLE pullrecorders (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    redis      boolean NOT NULL,
    logged     boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    written_to timestamptz,
    ended_at   timestamptz
);

-- If this registry counts pulls in Redis, Redis has pulls that aren't in the statistics yet.
-- Therefore this INSERT adds a row for a process that has ended. While the row exists, which
-- is until the next complete flush, processes that can't read Redis don't delete tags by their
-- last use.
INSERT INTO pullrecorders (redis, ended_at)
SELECT true, now() FROM redisprocessingstate WHERE redis_epoch > 0 AND last_processed_timestamp > now() - interval '1 day';
