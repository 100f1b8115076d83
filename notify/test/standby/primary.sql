-- How the specs of this folder reach the primary: their sessions are connected to the
-- standby, and each that sends has a connection of dblink to the primary.  The commits
-- there wait until they have been replayed, so that a step that has ended has told the
-- listeners.

CREATE EXTENSION pg_pinpoint;
CREATE USER MAPPING FOR PUBLIC SERVER primary_server;

-- The sessions of the primary, so that their PIDs can be shown by name.
CREATE TABLE sender (pid int PRIMARY KEY, session text);

CREATE PROCEDURE connect_to_primary(session text) LANGUAGE plpgsql AS
$$
BEGIN
	PERFORM dblink_connect('own', 'primary_server');
	PERFORM dblink_exec('own', format('INSERT INTO sender VALUES (pg_backend_pid(), %L)
		ON CONFLICT (pid) DO UPDATE SET session = excluded.session', session));
END $$;

CREATE PROCEDURE disconnect() LANGUAGE plpgsql AS
$$ BEGIN PERFORM dblink_disconnect('own'); END $$;

-- Runs commands there.  The result is that of the last, of one column.
CREATE FUNCTION on_primary(commands text) RETURNS SETOF text LANGUAGE sql AS
$$ SELECT * FROM dblink('own', commands) AS result (x text) $$;

-- The same, in two steps, for what has to wait in between.
CREATE FUNCTION begin_on_primary(commands text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN PERFORM dblink_send_query('own', commands); END $$;

CREATE FUNCTION end_on_primary() RETURNS SETOF text LANGUAGE plpgsql AS
$$
BEGIN
	LOOP
		RETURN QUERY SELECT * FROM dblink_get_result('own') AS result (x text);
		EXIT WHEN NOT FOUND;
	END LOOP;
END $$;

-- For setup and teardown, in a session that has no connection there.
CREATE PROCEDURE prepare_primary(commands text) LANGUAGE plpgsql AS
$$ BEGIN PERFORM dblink_exec('primary_server', commands); END $$;

-- Waits until a session of the primary, by its name, waits for a lock.
CREATE PROCEDURE wait_for_waiting(session text) LANGUAGE plpgsql AS
$$
BEGIN
	WHILE NOT EXISTS (SELECT FROM dblink('primary_server', format(
			'SELECT 1 FROM pg_stat_activity JOIN sender USING (pid)
			 WHERE session = %L AND wait_event_type = ''Lock''', session)) AS result (x int)) LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;

-- Waits until a session of the standby, which is in a transaction, has been signalled.
CREATE PROCEDURE wait_until_told(session text) LANGUAGE plpgsql AS
$$
BEGIN
	WHILE NOT EXISTS (SELECT FROM pinpoint.stat_listeners
			WHERE application_name LIKE '%/' || session AND state = 'signalled') LOOP
	END LOOP;
END $$;

CREATE PROCEDURE pause_replay() LANGUAGE plpgsql AS
$$
BEGIN
	PERFORM pg_wal_replay_pause();
	WHILE pg_get_wal_replay_pause_state() <> 'paused' LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;

-- Goes on, and waits until everything that the primary has committed is replayed.
CREATE PROCEDURE resume_replay() LANGUAGE plpgsql AS
$$
DECLARE
	target pg_lsn := x FROM dblink('primary_server', 'SELECT pg_current_wal_flush_lsn()') AS result (x pg_lsn);
BEGIN
	PERFORM pg_wal_replay_resume();
	WHILE pg_last_wal_replay_lsn() < target LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
