-- purser_decayed returns what is left at the time t of a number of failed log-ins, if `rate` of
-- them are forgotten each second.
CREATE OR REPLACE FUNCTION purser_decayed (failures double precision, updated_at timestamptz, rate double precision, t timestamptz)
    RETURNS double precision
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT GREATEST(0, failures - rate * GREATEST(0, extract(epoch FROM t - updated_at)::double precision))
$$;

-- purser_reserve_login counts a log-in as failed before its password is checked, if none of its
-- subjects has too many failures already. `subjects` are its account and its address, in this
-- order; either may be absent. bursts[i] is the largest number of failures of subjects[i], and
-- rates[i] is how many of them are forgotten each second. `pair` is the account together with
-- the address. If that account has logged in there lately, the failures of the pair are counted
-- in place of the others, with bursts[1] and rates[1].
--
-- If the log-in was counted, `wait` is 0, and `reserved` names the rows that count it. Otherwise
-- nothing was counted, and `wait` is the time in seconds after which it could be.
--
-- The first pass of the loop only reads, so refused log-ins of an attack cost no write. Then the
-- function locks the rows, and the second pass decides: its statements see what was committed
-- before the locks were taken, since each statement of a volatile function has a new snapshot. A
-- conflicting INSERT locks its row even though WHERE is false. The time is read after the locks,
-- so it isn't before the updated_at of another replica's change.
CREATE OR REPLACE FUNCTION purser_reserve_login (pair bytea, subjects bytea[], bursts double precision[], rates double precision[],
    OUT reserved bytea[], OUT wait double precision)
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    t timestamptz := clock_timestamp();
    s bytea;
BEGIN
    reserved := subjects;
    IF EXISTS (SELECT FROM loginfailures f WHERE f.subject = pair AND f.expires_at > t) THEN
        reserved := ARRAY[pair];
    END IF;
    FOR pass IN 1..2 LOOP
        SELECT COALESCE(max(GREATEST(0, purser_decayed(f.failures, f.updated_at, w.rate, t) + 1 - w.burst) / w.rate), 0) INTO wait
        FROM unnest(reserved, bursts, rates) w (subject, burst, rate)
        JOIN loginfailures f ON f.subject = w.subject;
        IF wait > 0 THEN
            RETURN;
        END IF;
        IF pass = 1 THEN
            FOREACH s IN ARRAY reserved LOOP
                INSERT INTO loginfailures AS f (subject, failures, updated_at, expires_at) VALUES (s, 0, t, t)
                ON CONFLICT (subject) DO UPDATE SET failures = f.failures WHERE false;
            END LOOP;
            t := clock_timestamp();
        END IF;
    END LOOP;
    UPDATE loginfailures f
    SET failures = n.failures, updated_at = t, expires_at = GREATEST(f.expires_at, t + make_interval(secs => n.failures / n.rate))
    FROM (
        SELECT w.subject, w.rate, purser_decayed(g.failures, g.updated_at, w.rate, t) + 1 AS failures
        FROM unnest(reserved, rates) w (subject, rate)
        JOIN loginfailures g ON g.subject = w.subject) n
    WHERE f.subject = n.subject;
END;
$$;

-- purser_return_login takes back what purser_reserve_login has counted for a log-in: 1 from each
-- row of `reserved`, with the same rates. After a log-in that has succeeded, `pair` is the
-- account together with the address; the function notes for the time `trust` that the account
-- has logged in there. The first 9 bytes of a pair say whose it is. Somebody who logs in from
-- millions of addresses could fill the disk otherwise, so who has a thousand pairs loses the one
-- that expires first for each new one, and a table with more than a million rows gets no further pairs.
-- It locks the rows in the order account, address, pair, and waits for no second pair.
CREATE OR REPLACE FUNCTION purser_return_login (reserved bytea[], rates double precision[], pair bytea, trust interval)
    RETURNS void
    LANGUAGE plpgsql VOLATILE
    AS $$
DECLARE
    t timestamptz;
    owner bytea := substring(pair FROM 1 FOR 9);
    beyond bytea := owner || decode(repeat('ff', 17), 'hex'); -- after all pairs of this owner
BEGIN
    FOR i IN 1..cardinality(reserved) LOOP
        PERFORM FROM loginfailures f WHERE f.subject = reserved[i] FOR UPDATE;
        t := clock_timestamp();
        UPDATE loginfailures f
        SET failures = GREATEST(0, purser_decayed(f.failures, f.updated_at, rates[i], t) - 1), updated_at = t
        WHERE f.subject = reserved[i];
    END LOOP;
    t := clock_timestamp();
    UPDATE loginfailures f SET expires_at = GREATEST(f.expires_at, t + trust) WHERE f.subject = pair;
    IF FOUND OR pair IS NULL THEN
        RETURN;
    END IF;
    IF (SELECT count(*) FROM (SELECT FROM loginfailures f WHERE f.subject > owner AND f.subject < beyond LIMIT 1000) counted) = 1000 THEN
        -- The sum keeps the planner from the index on expires_at, which has the pairs of all owners.
        DELETE FROM loginfailures WHERE subject = (
            SELECT f.subject FROM loginfailures f WHERE f.subject > owner AND f.subject < beyond
            ORDER BY f.expires_at + interval '0' LIMIT 1 FOR UPDATE SKIP LOCKED);
    ELSIF (SELECT c.reltuples FROM pg_catalog.pg_class c WHERE c.oid = 'loginfailures'::regclass) >= 1000000 THEN
        RETURN;
    END IF;
    INSERT INTO loginfailures AS f (subject, failures, updated_at, expires_at) VALUES (pair, 0, t, t + trust)
    ON CONFLICT (subject) DO UPDATE SET expires_at = GREATEST(f.expires_at, excluded.expires_at);
END;
$$;
