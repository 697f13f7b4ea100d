-- webhookdeliveries has the notices to a webhook: those that are still to be sent, and those
-- that were sent.
--
-- A notice is inserted by the same transaction that makes the change which the notice reports.
-- next_attempt is when the notice is to be sent. A sender claims the notice before it sends
-- it: it moves next_attempt into the future, so that another sender takes the notice if the
-- first one dies, and writes a new id into lease. Only the sender whose id is in lease may
-- record that sending failed. attempts counts these claims. body is text and not jsonb,
-- because its bytes are signed and must be the same each time that the notice is sent.
--
-- The table has no column for the URL: a notice is sent to the URL that the configuration has
-- when it is sent.

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
