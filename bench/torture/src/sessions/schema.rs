//! The tables, triggers and procedures that the torture works on.

use crate::workload::identity::{
    Channel, FENCE_BASE, FILLER, Introduction, WATCHED_BASE, WATCHED_TABLES,
};

/// The replication slot that tells the true order of commits.
pub const SLOT: &str = "pinpoint_torture";

/// Prefix of the messages in the WAL by which the oracle finds out how far it is.
pub const MARKER: &str = "pinpoint_torture";

/// SQLSTATE of the statement `BREAK_CONSTRAINT`: check_violation.
pub const CONSTRAINT_BROKEN: &str = "23514";
pub const BREAK_CONSTRAINT: &str = "INSERT INTO positive VALUES (-1)";

/// SQLSTATE of a COMMIT after `break_deferred_constraint`: unique_violation.
pub const DEFERRED_CONSTRAINT_BROKEN: &str = "23505";

/// Each writer has a value of its own, so that none has to wait for another.
pub fn break_deferred_constraint(writer: u32) -> String {
    format!("INSERT INTO unique_later VALUES ({writer})")
}

/// What makes two serializable transactions depend on each other: each reads
/// all accounts and changes one of its own.
pub const READ_ACCOUNTS: &str = "SELECT sum(value) FROM account";

/// First key of the advisory locks that listeners hold while they introduce
/// themselves; the second one is the listener.
const INTRODUCTION_LOCK: u32 = 1;

/// What a listener does in the transaction of its LISTEN, so that writers notify
/// it as soon as they can see it, or get the lock that it held.
pub fn introduce(introduction: Introduction) -> String {
    let Introduction { listener, number } = introduction;
    format!(
        "SELECT pg_advisory_xact_lock({INTRODUCTION_LOCK}, {listener}); \
         UPDATE newcomer SET number = {number} WHERE listener = {listener}"
    )
}

/// Waits for the end of a transaction in which a listener is introducing itself,
/// if there is one.
pub const AWAIT_NEWCOMER: &str = "SELECT await_newcomer()";

/// Whom a writer can see. The columns are those of an `Introduction`.
pub const SEE_NEWCOMERS: &str = "SELECT listener, number FROM newcomer";

/// The SQL that makes everything. One row of `event` goes with each
/// notification, in the same (sub)transaction; the column `via` tells the
/// triggers which rows are theirs. A row of `newcomer` shows the last LISTEN with
/// which a listener introduced itself. The other tables are unlogged, so that
/// the decoded stream is free of them.
pub fn create(writers: u32, listeners: u32) -> String {
    format!(
        "
CREATE TABLE event (
    writer integer,
    transaction integer,
    index integer,
    channel integer NOT NULL,
    length integer NOT NULL,
    via \"char\" NOT NULL DEFAULT 'c',
    pid integer NOT NULL DEFAULT pg_backend_pid(),
    PRIMARY KEY (writer, transaction, index)
);

CREATE FUNCTION channel_name(channel integer) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN channel >= {FENCE_BASE} THEN 'fence_' || channel - {FENCE_BASE}
                ELSE 'c' || channel END
$$;

CREATE FUNCTION payload(event) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT rpad($1.writer || '.' || $1.transaction || '.' || $1.index || ':',
                $1.length, '{FILLER}')
$$;

-- What a position client has a copy of: the last transaction of each writer and each
-- listener with a row on each of these channels.
CREATE INDEX ON event (channel, writer, transaction);
CREATE FUNCTION last_transactions(channels integer[])
RETURNS TABLE (channel integer, writer integer, transaction integer)
LANGUAGE sql STABLE AS $$
    SELECT c, w, last.transaction
    FROM unnest(channels) AS c,
        (SELECT generate_series(0, {last_writer})
         UNION ALL
         SELECT generate_series({FENCE_BASE}, {FENCE_BASE} + {last_listener})
         UNION ALL
         SELECT generate_series({WATCHED_BASE}, {WATCHED_BASE} + {last_table})) AS writers (w),
        LATERAL (SELECT event.transaction FROM event
                 WHERE event.channel = c AND event.writer = w
                 ORDER BY event.transaction DESC LIMIT 1) AS last
$$;

CREATE FUNCTION notify_of_event() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(channel_name(NEW.channel), payload(NEW));
    RETURN NULL;
END
$$;

CREATE TRIGGER at_once AFTER INSERT ON event
    FOR EACH ROW WHEN (NEW.via = 'i') EXECUTE FUNCTION notify_of_event();

CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON event
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.via = 'd') EXECUTE FUNCTION notify_of_event();

-- Each line: transaction, index, channel, length, and what follows: nothing (0),
-- COMMIT (1) or ROLLBACK (2).
CREATE PROCEDURE several_transactions(writer integer, lines integer[])
LANGUAGE plpgsql AS $$
DECLARE
    line integer[];
    inserted event;
BEGIN
    FOREACH line SLICE 1 IN ARRAY lines LOOP
        INSERT INTO event VALUES (writer, line[1], line[2], line[3], line[4])
            RETURNING * INTO inserted;
        EXECUTE format('NOTIFY %I, %L', channel_name(line[3]), payload(inserted));
        IF line[5] = 1 THEN
            COMMIT;
        ELSIF line[5] = 2 THEN
            ROLLBACK;
        END IF;
    END LOOP;
END
$$;

CREATE TABLE newcomer (listener integer PRIMARY KEY, number integer NOT NULL DEFAULT -1);
INSERT INTO newcomer SELECT generate_series(0, {last_listener});

CREATE FUNCTION await_newcomer() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    listener integer;
BEGIN
    SELECT objid INTO listener FROM pg_locks
        WHERE locktype = 'advisory' AND classid = {INTRODUCTION_LOCK}
            AND mode = 'ExclusiveLock' AND granted
        ORDER BY random() LIMIT 1;
    IF FOUND THEN
        PERFORM pg_advisory_xact_lock_shared({INTRODUCTION_LOCK}, listener);
    END IF;
END
$$;

CREATE UNLOGGED TABLE account (writer integer PRIMARY KEY, value integer NOT NULL);
INSERT INTO account SELECT writer, 0 FROM generate_series(0, {last_writer}) AS writer;

-- A call that pg_pinpoint does not replace, so that it may be on any channel.
CREATE UNLOGGED TABLE forged (
    heartbeat text CHECK (pg_notify('pinpoint_heartbeat', heartbeat)::text = '')
);

CREATE UNLOGGED TABLE positive (value integer CHECK (value > 0));

CREATE UNLOGGED TABLE unique_later (value integer UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO unique_later SELECT generate_series(0, {last_writer});
",
        last_writer = writers - 1,
        last_listener = listeners - 1,
        last_table = WATCHED_TABLES - 1
    )
}

/// The watched tables, each of them with a partition for the row that is always there, one for
/// other rows, and a table with a trigger that changes it. What has rows is unlogged.
pub fn watch_tables() -> String {
    let mut sql = "
CREATE FUNCTION change_watched() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO %I VALUES ($1)', TG_ARGV[0]) USING NEW.value;
    RETURN NULL;
END
$$;
"
    .to_owned();
    for name in (0..WATCHED_TABLES).map(Channel::of_watched) {
        sql.push_str(&format!(
            "
CREATE TABLE {name} (value integer, version integer DEFAULT 0) PARTITION BY LIST (value);
CREATE UNLOGGED TABLE kept_of_{name} PARTITION OF {name} FOR VALUES IN (0);
INSERT INTO {name} VALUES (0);
CREATE UNLOGGED TABLE part_of_{name} PARTITION OF {name} DEFAULT;
CREATE UNLOGGED TABLE source_of_{name} (value integer);
CREATE TRIGGER change AFTER INSERT ON source_of_{name}
    FOR EACH ROW EXECUTE FUNCTION change_watched('{name}');
SELECT pinpoint.watch('{name}');
"
        ));
    }
    sql
}

/// Sends a heartbeat with a position that the server has not given: its counter is
/// `ahead` of that of the current position. The counter has 16 digits, from the 35th on.
pub fn forge_heartbeat(ahead: u32) -> String {
    format!(
        "INSERT INTO forged \
         SELECT overlay(position PLACING lpad(to_hex(counter + {ahead}), 16, '0') FROM 35) \
             || ' primary' \
         FROM pinpoint.position() AS position, \
             LATERAL (SELECT ('x' || substr(position, 35, 16))::bit(64)::bigint) AS c (counter)"
    )
}

/// Inserts a row, and notifies of it by a query over what was inserted.
/// `values` are for the columns up to `length`.
pub fn insert_and_notify(values: &str) -> String {
    format!(
        "WITH inserted AS (INSERT INTO event VALUES ({values}) RETURNING *) \
         SELECT pg_notify(channel_name(channel), payload(inserted)) FROM inserted"
    )
}
