-- uncounted_at is the time of the last pull that was answered but not counted, because the
-- recorder's memory was full; NULL means that there was no such pull. Every later pull was
-- counted. The last-used time was recorded even for this pull, so recorded_since, on which
-- auto-pruning relies, doesn't change.

-- +goose Up
ALTER TABLE pullstatisticsprocessingstate ADD COLUMN uncounted_at timestamptz;
