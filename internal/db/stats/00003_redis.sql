-- This migration adds columns and tables for counting pulls in Redis, and for uses of a tag or
-- manifest that aren't pulls.
--
-- last_check_date is when a client last asked for the tag or manifest by HEAD, or pulled it in
-- a way that may not have been counted. It is exact to some minutes. Policies that delete tags
-- by the time of their last pull treat this date like a pull, so that no tag in use is
-- deleted.
--
-- checks_since is the time since which all processes record HEAD requests. If a tag or
-- manifest has no recorded request, clients may still have asked for it before this time.
--
-- gone_since is when a worker first found that the tag or manifest of this row doesn't exist
-- any more. Since the tag or manifest may be restored, the row is kept for a while.

-- +goose Up
ALTER TABLE tagpullstatistics ADD COLUMN last_check_date timestamptz, ADD COLUMN gone_since timestamptz;
ALTER TABLE manifestpullstatistics ADD COLUMN last_check_date timestamptz, ADD COLUMN gone_since timestamptz;

ALTER TABLE pullstatisticsprocessingstate ADD COLUMN checks_since timestamptz NOT NULL DEFAULT now();

-- The only row of redisprocessingstate has the state of the flushes, which move counts from
-- Redis into the statistics. The column "owner" distinguishes this registry's Redis keys from
-- those of another registry in the same Redis. redis_epoch is the number of the newest batch of
-- Redis keys, which is stored in Redis too: if the number in Redis is lower, Redis has lost
-- data.
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

-- Each row of redisflushbatches is a batch of Redis keys that a process has claimed for
-- counting. The transaction that sets the row's state to applied also adds the pulls of the
-- batch's keys to the statistics.
CREATE TABLE redisflushbatches (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    state       text COLLATE "C" NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'applied', 'abandoned')),
    lease_until timestamptz NOT NULL,
    keys        integer NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX redisflushbatches_created_at_idx ON redisflushbatches (created_at) WHERE state <> 'open';
