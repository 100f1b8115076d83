package org.pgpinpoint;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import org.postgresql.PGConnection;

/**
 * What a client knows of the server of a connection.
 *
 * @param pooled is there a pooler? Then the session is not the one whose process ID the connection was given
 * @param interval of heartbeats; zero is never
 * @param timeLimit of statements or transactions
 */
record Server(int version, boolean standby, boolean pooled, int pinpoint, String role, Duration interval,
    Duration timeLimit) {
  // Values of pinpoint: the versions that matter, or why there is none.
  private static final int NO_PRIVILEGE = -1;
  private static final int VERSION_1_0 = 10;
  private static final int VERSION_1_1 = 11;

  // The functions are looked at only in a schema that the role may use, as otherwise to_regproc() fails.
  private static final String PINPOINT = """
      SELECT coalesce((SELECT CASE
        WHEN NOT has_schema_privilege(oid, 'USAGE') THEN -1
        WHEN to_regproc('pinpoint.wait') IS NOT NULL AND to_regproc('pinpoint.channels_of') IS NOT NULL THEN 11
        WHEN to_regproc('pinpoint.changed_since') IS NOT NULL THEN 10
        END FROM pg_namespace WHERE nspname = 'pinpoint'), 0)""";
  // With pinpoint.sql there are no heartbeats, even if the server has the library for another database.
  private static final String INQUIRY = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),"
      + " pg_backend_pid(), (" + PINPOINT + """
      ), current_user,
      coalesce((SELECT setting::int FROM pg_settings WHERE name = 'pinpoint.heartbeat_interval'
        AND EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_pinpoint')), 0),
      (SELECT coalesce(min(setting::int), 2147483647) FROM pg_settings
       WHERE name IN ('statement_timeout', 'transaction_timeout') AND setting <> '0')""";

  // The client's sessions are idle by purpose, and what they execute ends with their connection.
  private static final String OWN_SESSION = """
      SELECT string_agg(set_config(name, CASE setting WHEN '0' THEN '1s' ELSE '0' END, false), '') FROM pg_settings
       WHERE name = 'idle_session_timeout' AND setting <> '0'
          OR name = 'client_connection_check_interval' AND setting = '0' AND version() ~ 'linux'""";

  /** Inquire, and make a session that is not that of a pooler the client's own. */
  static Server open(Connections connections, Connection connection) throws SQLException {
    List<Object> row = connections.fetch(connection, INQUIRY);
    boolean pooled = (int) row.get(2) != connection.unwrap(PGConnection.class).getBackendPID();
    Server server = new Server((int) row.get(0), (boolean) row.get(1), pooled, (int) row.get(3),
        (String) row.get(4), Duration.ofMillis((int) row.get(5)), Duration.ofMillis((int) row.get(6)));
    if (!pooled) {
      connections.fetch(connection, OWN_SESSION);
    }
    return server;
  }

  /** Does the server answer? Throws if it is not as it was. */
  void check(Connections connections, Connection connection) throws SQLException {
    if (pinpoint != (int) connections.fetch(connection, PINPOINT).get(0)) {
      throw new SQLException("the extension pg_pinpoint was created or dropped");
    }
  }

  boolean hasPositions() {
    return pinpoint >= VERSION_1_0;
  }

  boolean hasWait() {
    return pinpoint >= VERSION_1_1;
  }

  boolean hasHeartbeats() {
    return hasPositions() && !interval.isZero();
  }

  /** Throws why there are no live queries. */
  void checkLive() {
    if (pinpoint == NO_PRIVILEGE) {
      throw new PinpointException("live queries need a privilege: execute GRANT USAGE ON SCHEMA pinpoint TO \""
          + role.replace("\"", "\"\"") + "\"", "42501");
    } else if (!hasWait()) {
      throw new PinpointException(
          "a live query needs pg_pinpoint 1.1 or later, or its pinpoint.sql, in this database", "0A000");
    }
  }
}
