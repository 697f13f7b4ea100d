-- HEAD requests by tag, and pulls by digest, that were read in the log and may still
-- belong together. A pull by digest is already counted for its manifest. Once all
-- processes have written what came before the pull, it is also counted for the tag of its
-- HEAD, and the row is deleted. id, client and port are those of the log.
--
-- pullrecorders has a row for each process that records pulls. The process has written all
-- its pulls before written_to; NULL: it has written all, and none has come since. ended_at
-- is set when a process ends in order; the row of a killed process only stops changing.
-- redis: the process's pulls are counted by Redis, so a process that can't read Redis can't
-- know what was used. logged: all these pulls are in the log too, from which they can be
-- counted again.

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

-- A registry that counts in Redis has uncounted pulls there: until the next complete flush
-- no other process may decide by last use.
INSERT INTO pullrecorders (redis, ended_at)
SELECT true, now() FROM redisprocessingstate WHERE redis_epoch > 0 AND last_processed_timestamp > now() - interval '1 day';
