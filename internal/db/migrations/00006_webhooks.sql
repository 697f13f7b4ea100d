-- webhookdeliveries has the notices to a webhook: those that are still to be sent, and those
-- that were sent.
--
-- The transaction that a notice reports also inserts the notice. next_attempt is when the
-- notice is sent next. A sender that claims the notice moves next_attempt ahead by a lease, so
-- that another sender takes the notice if the first one dies. lease identifies this claim:
-- only the sender that has it may record that the attempt failed. body is text and not jsonb,
-- because its bytes are signed and must be the same at each attempt. attempts counts claims.
--
-- The table has no URL: a waiting notice is sent to the URL that the configuration has at that
-- time.

-- +goose Up
CREATE TABLE webhookdeliveries (
    id           uuid PRIMARY KEY,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    event        text COLLATE "C" NOT NULL,
    body         text NOT NULL,
    attempts     integer NOT NULL DEFAULT 0,
    next_attempt timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease        uuid,
    last_error   text,
    delivered_at timestamptz,
    given_up_at  timestamptz,
    CHECK (delivered_at IS NULL OR given_up_at IS NULL)
);

CREATE INDEX webhookdeliveries_next_attempt_idx ON webhookdeliveries (next_attempt)
    WHERE delivered_at IS NULL AND given_up_at IS NULL;
CREATE INDEX webhookdeliveries_settled_idx ON webhookdeliveries ((coalesce(delivered_at, given_up_at)))
    WHERE delivered_at IS NOT NULL OR given_up_at IS NOT NULL;
