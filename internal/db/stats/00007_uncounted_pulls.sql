-- When a pull was last answered that isn't counted, since it found no room: every pull
-- after that is counted. It is known as a use, so recorded_since, by which auto-pruning
-- goes, doesn't move. NULL: there was none.

-- +goose Up
ALTER TABLE pullstatisticsprocessingstate ADD COLUMN uncounted_at timestamptz;
