-- These tables have the statistics of pulls. They may be in a separate database, so they refer
-- to repositories by id and have no foreign keys. Loose foreign keys delete the rows of a
-- deleted repository.

-- +goose Up
CREATE TABLE tagpullstatistics (
    repository_id           bigint NOT NULL,
    tag_name                text COLLATE "C" NOT NULL,
    tag_pull_count          bigint NOT NULL DEFAULT 0,
    last_tag_pull_date      timestamptz,
    current_manifest_digest text,
    redis_last_processed    timestamptz,
    PRIMARY KEY (repository_id, tag_name)
);

CREATE INDEX tagpullstatistics_last_tag_pull_date_idx ON tagpullstatistics (repository_id, last_tag_pull_date);

CREATE TABLE manifestpullstatistics (
    repository_id        bigint NOT NULL,
    manifest_digest      text COLLATE "C" NOT NULL,
    total_pull_count     bigint NOT NULL DEFAULT 0,
    last_pull_date       timestamptz,
    last_tag_pulled      text,
    redis_last_processed timestamptz,
    PRIMARY KEY (repository_id, manifest_digest)
);

CREATE INDEX manifestpullstatistics_last_pull_date_idx ON manifestpullstatistics (repository_id, last_pull_date);
