"""Extensions of pg_tle. Each function is a test, as in situations.py."""

from situations import expect, listener_of, stock_and_pinpoint, texts

# An extension with a table, and a function that changes it and notifies; and a new version.
EXTENSION = """
SELECT pgtle.install_extension('told', '1.0', 'a test', $tle$
  CREATE TABLE told_rows (value text);
  CREATE FUNCTION tell(value text) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO told_rows VALUES (value); PERFORM pg_notify('a', value);
       EXECUTE format('NOTIFY a, %L', value || ' statement'); END $$;
$tle$);
SELECT pgtle.install_update_path('told', '1.0', '1.1', $tle$
  ALTER TABLE told_rows ADD number int DEFAULT 1;
  NOTIFY a, 'updated';
$tle$);
CREATE EXTENSION told VERSION '1.0';
"""


def notifies(runner):
    """pg_tle: an extension notifies from its function, and from its script"""
    def test(server):
        control, listener = server.connect(), listener_of(server, "a")
        control.run("CREATE EXTENSION pg_tle")
        control.run(EXTENSION)
        control.run("SELECT tell('x')")
        control.run("BEGIN; SELECT tell('lost'); ROLLBACK")
        control.run("ALTER EXTENSION told UPDATE TO '1.1'")
        expect(["a x", "a x statement", "a updated"], texts(listener.sync(control)),
               "notifications")

    stock_and_pinpoint(runner, test, "pg_tle")


def watched(runner):
    """pg_tle: a table of an extension is watched: its function, its script, and when it is dropped"""
    for libraries in (["pg_pinpoint", "pg_tle"], ["pg_tle", "pg_pinpoint"]):
        with runner.server(libraries) as server:
            control, listener = server.connect(), listener_of(server, "told_rows")
            control.run("CREATE EXTENSION pg_pinpoint; CREATE EXTENSION pg_tle")
            control.run(EXTENSION)
            control.run("SELECT pinpoint.watch('told_rows')")
            listener.sync(control)
            for statement, told in (("SELECT tell('x')", ["told_rows"]),
                                    ("BEGIN; SELECT tell('y'); ROLLBACK", []),
                                    ("ALTER EXTENSION told UPDATE TO '1.1'", ["told_rows"]),
                                    ("DROP EXTENSION told", ["told_rows"])):
                control.run(statement)
                expect(told, texts(listener.sync(control)), f"notifications of {statement}")


ALL = [notifies, watched]
