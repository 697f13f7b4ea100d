-- Counting pulls in Redis, and signs of use that are no pulls.
--
-- last_check_date is when a tag or a manifest was last asked for by HEAD, or pulled
-- in a way that may not have been counted. It is exact to some minutes, and keeps
-- what is in use from being deleted by last pull.
--
-- checks_since is from when on every process remembers HEAD requests: what wasn't asked
-- for before that may have been all the same.
--
-- gone_since is when the tag or the manifest of a row was first found missing: it
-- may be restored, so its statistics stay for a while.

-- +goose Up
ALTER TABLE tagpullstatistics ADD COLUMN last_check_date timestamptz, ADD COLUMN gone_since timestamptz;
ALTER TABLE manifestpullstatistics ADD COLUMN last_check_date timestamptz, ADD COLUMN gone_since timestamptz;

ALTER TABLE pullstatisticsprocessingstate ADD COLUMN checks_since timestamptz NOT NULL DEFAULT now();

-- How flushing Redis stands: one row. owner tells the keys of this registry from those
-- of another one that has the same Redis. redis_epoch is the newest batch that Redis
-- was told of: a Redis that remembers an older one has lost data.
CREATE TABLE redisprocessingstate (
    id                       bigint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    last_processed_timestamp timestamptz NOT NULL DEFAULT 'epoch',
    processing_status        text COLLATE "C" NOT NULL DEFAULT 'IDLE' CHECK (processing_status IN ('IDLE', 'PROCESSING', 'ERROR')),
    error_message            text,
    keys_processed_count     bigint NOT NULL DEFAULT 0,
    owner                    uuid NOT NULL DEFAULT gen_random_uuid(),
    redis_epoch              bigint NOT NULL DEFAULT 0,
    created_at               timestamptz NOT NULL DEFAULT now(),
    updated_at               timestamptz NOT NULL DEFAULT now()
);

INSERT INTO redisprocessingstate DEFAULT VALUES;

-- The batches of keys that were claimed in Redis to be counted here. What a batch
-- claimed is counted exactly when it is applied.
CREATE TABLE redisflushbatches (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state       text COLLATE "C" NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'applied', 'abandoned')),
    lease_until timestamptz NOT NULL,
    keys        integer NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX redisflushbatches_created_at_idx ON redisflushbatches (created_at) WHERE state <> 'open';
