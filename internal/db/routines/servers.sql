-- running_servers has the servers that run: a server says so every 20 seconds, and says when it stops. A
-- time of the future was written before this database's clock was set back, maybe by a server that is
-- gone; a server that runs writes another one within 20 seconds.
CREATE OR REPLACE VIEW running_servers AS
SELECT replica, host, started_at, seen_at, settings FROM servers
WHERE NOT stopped AND seen_at BETWEEN now() - interval '1 minute' AND now() + interval '1 minute';
