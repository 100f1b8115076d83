-- Tables of the examples: settings that applications keep a copy of, and a queue
-- of jobs.  A program that changes them notifies, so that no program has to poll.

CREATE TABLE settings (
	key   text PRIMARY KEY,
	value text NOT NULL
);

CREATE FUNCTION tell_of_setting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_notify('setting_changed', coalesce(NEW.key, OLD.key));
	RETURN NULL;
END $$;

CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON settings
	FOR EACH ROW EXECUTE FUNCTION tell_of_setting();

CREATE TABLE jobs (
	id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	payload text NOT NULL,
	result  text,                       -- NULL: not done yet
	worker  int                         -- process ID of the session that did it
);

CREATE INDEX jobs_to_do ON jobs (id) WHERE result IS NULL;

CREATE FUNCTION tell_of_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NOTIFY job_added;
	RETURN NULL;
END $$;

CREATE TRIGGER tell AFTER INSERT ON jobs
	FOR EACH STATEMENT EXECUTE FUNCTION tell_of_jobs();
