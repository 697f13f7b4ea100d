-- The time of the last pull that was answered but not counted, because the recorder had no
-- room for it. Every later pull is counted. The pull's time of use is recorded, so
-- recorded_since, which auto-pruning uses, doesn't move. NULL: there was no such pull.

-- +goose Up
ALTER TABLE pullstatisticsprocessingstate ADD COLUMN uncounted_at timestamptz;
