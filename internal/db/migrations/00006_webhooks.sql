-- Notices to a webhook: what is still to be told, and what was.
--
-- A notice is written by the transaction that it tells of. next_attempt is when it
-- is sent next; who sends it moves that ahead by a lease, so that it comes back if
-- its sender dies. lease is the sender's claim: only its holder may say that an
-- attempt failed. body is text and not jsonb, because its bytes are signed and
-- must be the same each time. attempts counts claims.
--
-- There is no URL: what waits is sent to where the setting points by then.

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
