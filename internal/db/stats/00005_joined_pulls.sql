-- HEAD requests by tag, and pulls by digest, that were read in the log and may still
-- belong together. A pull by digest in here is counted for its manifest; once all
-- processes have written what came before it, it is counted for the tag of its HEAD too,
-- and goes. id, client and port are those of the log.
--
-- pullrecorders are the processes that take note of pulls. written_to is up to when all
-- pulls are written down; NULL: all are, and none came since. A process that ends as it
-- should has ended_at; one that is killed doesn't, and isn't seen any more. redis says
-- that Redis counts its pulls: who can't read Redis can't know what was used. logged says
-- that all of these are in the log too, from where they can be counted again.

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

-- A registry that counts in Redis has pulls in there: until the next complete
-- flush nobody else may decide by last use.
INSERT INTO pullrecorders (redis, ended_at)
SELECT true, now() FROM redisprocessingstate WHERE redis_epoch > 0 AND last_processed_timestamp > now() - interval '1 day';
