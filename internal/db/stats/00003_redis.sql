-- Counting pulls in Redis, and signs of use that are no pulls.
--
-- last_check_date is when a tag or a manifest was last asked for by HEAD, or pulled
-- in a way that may not have been counted. It is exact to some minutes, and keeps
-- what is in use from being deleted by last pull.
--
-- checks_since is the time since which all processes record HEAD requests. Before it, a
-- tag or manifest without a recorded request may have been requested all the same.
--
-- gone_since is when the tag or the manifest of a row was first found missing: it
-- may be restored, so its statistics stay for a while.

-- +goose Up
ALTER TABLE tagpullstatistics ADD COLUMN last_check_date timestamptz, ADD COLUMN gone_since timestamptz;
ALTER TABLE manifestpullstatistics ADD COLUMN last_check_date timestamptz, ADD COLUMN gone_since timestamptz;

ALTER TABLE pullstatisticsprocessingstate ADD COLUMN checks_since timestamptz NOT NULL DEFAULT now();

-- One row holds the state of flushing Redis. owner distinguishes this registry's keys from
-- those of another registry in the same Redis. redis_epoch is the newest batch that was
-- recorded in Redis: a Redis that has an older one has lost data.
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

-- The batches of Redis keys that were claimed for counting. The pulls of a batch's keys are
-- added to the statistics when, and only when, the batch is applied.
CREATE TABLE redisflushbatches (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state       text COLLATE "C" NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'applied', 'abandoned')),
    lease_until timestamptz NOT NULL,
    keys        integer NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX redisflushbatches_created_at_idx ON redisflushbatches (created_at) WHERE state <> 'open';
