import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.HashMap;
import java.util.Map;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;

/**
 * A cache that PostgreSQL keeps up to date, and a worker of a job queue.
 *
 * <pre>java Example cache | worker</pre>
 *
 * JDBC_URL names the database, which has ../schema.sql.
 */
public final class Example {
	/**
	 * A worker looks again after so many milliseconds, whatever it was told: a job may have been
	 * given up by another worker.
	 */
	private static final int LOOK_AGAIN = 60_000;

	public static void main(String[] args) throws SQLException {
		switch (args[0]) {
			case "cache" -> keepCache();
			case "worker" -> work();
			default -> throw new IllegalArgumentException(args[0]);
		}
	}

	private static Connection listen(String channel) throws SQLException {
		Connection connection = DriverManager.getConnection(System.getenv("JDBC_URL"));
		try (Statement statement = connection.createStatement()) {
			statement.execute("LISTEN " + channel);
		}
		return connection;
	}

	/** Notifications that are there, or come within so many milliseconds; 0 is for ever. */
	private static PGNotification[] notifications(Connection connection, int timeout)
			throws SQLException {
		PGNotification[] got = connection.unwrap(PGConnection.class).getNotifications(timeout);
		return got == null ? new PGNotification[0] : got;
	}

	/** Keeps a copy of the settings until there is one with the name "stop". */
	private static void keepCache() throws SQLException {
		Map<String, String> cache = new HashMap<>();
		while (!cache.containsKey("stop")) {
			// First LISTEN, then read: what changes in between is told.
			try (Connection connection = listen("setting_changed")) {
				load(connection, cache);
				while (!cache.containsKey("stop")) {
					for (PGNotification notification : notifications(connection, 0)) {
						refresh(connection, cache, notification.getParameter());
					}
				}
			} catch (SQLException e) {
				// SQLSTATEs of class 57 are of a server that ends sessions, 08 of connections.
				// What changed meanwhile nobody will tell: connect, and read all.
				if (!e.getSQLState().matches("(08|57).*")) {
					throw e;
				}
			}
		}
	}

	private static void load(Connection connection, Map<String, String> cache)
			throws SQLException {
		cache.clear();
		try (Statement statement = connection.createStatement();
				ResultSet rows = statement.executeQuery("SELECT key, value FROM settings")) {
			while (rows.next()) {
				cache.put(rows.getString(1), rows.getString(2));
			}
		}
		System.out.println("loaded " + cache.size());
	}

	private static void refresh(Connection connection, Map<String, String> cache, String key)
			throws SQLException {
		try (PreparedStatement statement =
				connection.prepareStatement("SELECT value FROM settings WHERE key = ?")) {
			statement.setString(1, key);
			try (ResultSet rows = statement.executeQuery()) {
				if (rows.next()) {
					cache.put(key, rows.getString(1));
					System.out.println(key + " = " + rows.getString(1));
				} else {
					cache.remove(key);
					System.out.println(key + " gone");
				}
			}
		}
	}

	/** Does jobs until one says "stop". */
	private static void work() throws SQLException {
		try (Connection connection = listen("job_added")) {
			connection.setAutoCommit(false);
			System.out.println("ready");
			for (int done = 0;; ) {
				String payload = takeJob(connection);
				if (payload == null) {
					notifications(connection, LOOK_AGAIN);
				} else if (payload.equals("stop")) {
					System.out.println("done " + done);
					return;
				} else {
					done++;
				}
			}
		}
	}

	/** Does one job, which nobody else does meanwhile, and returns its payload. */
	private static String takeJob(Connection connection) throws SQLException {
		String payload = null;
		try (Statement select = connection.createStatement();
				ResultSet job = select.executeQuery(
						"SELECT id, payload FROM jobs WHERE result IS NULL"
								+ " ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1");
				PreparedStatement update = connection.prepareStatement(
						"UPDATE jobs SET result = ?, worker = pg_backend_pid() WHERE id = ?")) {
			if (job.next()) {
				payload = job.getString(2);
				update.setString(1, payload.toUpperCase());
				update.setLong(2, job.getLong(1));
				update.executeUpdate();
			}
		}
		connection.commit();
		return payload;
	}

	private Example() {}
}
