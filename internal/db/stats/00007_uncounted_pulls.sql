-- uncounted_at is the time of the last pull that was answered but not counted, because the
-- recorder's memory was full. Every later pull was counted. The last-used time of that pull
-- was recorded, so recorded_since, which auto-pruning uses, stays as it is. NULL: there was no
-- such pull.

-- +goose Up
ALTER TABLE pullstatisticsprocessingstate ADD COLUMN uncounted_at timestamptz;
