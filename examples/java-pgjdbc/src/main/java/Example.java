import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.PGProperty;

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

	/** Seconds until a query is given up. */
	private static final int TIMEOUT = 10;

	/** Milliseconds before another attempt to connect. */
	private static final int RECONNECT_AFTER = 200;

	/** In milliseconds; 0 is never. Without pg_pinpoint there is no row. */
	private static final String HEARTBEAT_INTERVAL =
			"SELECT setting::int FROM pg_settings"
					+ " WHERE name = 'pinpoint.heartbeat_interval'"
					+ " AND to_regproc('pinpoint.changed_since') IS NOT NULL";

	private static final String CHANGED_SINCE =
			"SELECT changed, position FROM pinpoint.changed_since(?, 'setting_changed')";

	public static void main(String[] args) throws SQLException, InterruptedException {
		switch (args[0]) {
			case "cache" -> keepCache();
			case "worker" -> work();
			default -> throw new IllegalArgumentException(args[0]);
		}
	}

	private static Connection listen(String... channels) throws SQLException {
		Properties properties = new Properties();
		PGProperty.SOCKET_TIMEOUT.set(properties, TIMEOUT);
		Connection connection = DriverManager.getConnection(System.getenv("JDBC_URL"), properties);
		try (Statement statement = connection.createStatement()) {
			for (String channel : channels) {
				statement.execute("LISTEN " + channel);
			}
		} catch (SQLException e) {
			connection.close();
			throw e;
		}
		return connection;
	}

	/** Notifications that are there, or come within so many milliseconds; 0 is for ever. */
	private static PGNotification[] notifications(Connection connection, int timeout)
			throws SQLException {
		PGNotification[] got = connection.unwrap(PGConnection.class).getNotifications(timeout);
		return got == null ? new PGNotification[0] : got;
	}

	/** A copy of the settings. */
	private static final Map<String, String> cache = new HashMap<>();

	/** The position up to which the copy is right. */
	private static String position;

	/** Keeps the copy until there is a setting with the name "stop". */
	private static void keepCache() throws SQLException, InterruptedException {
		while (!cache.containsKey("stop")) {
			// First LISTEN, then look: what changes in between is told.
			try (Connection connection = listen("setting_changed", "pinpoint_heartbeat")) {
				follow(connection);
			} catch (SQLException e) {
				// SQLSTATEs of class 57 are of a server that ends sessions, 08 of connections.
				if (!e.getSQLState().matches("(08|57).*")) {
					throw e;
				}
				Thread.sleep(RECONNECT_AFTER);
			}
		}
	}

	/** Keeps the copy right until there is a "stop", or no heartbeat any more. */
	private static void follow(Connection connection) throws SQLException {
		int interval = 0;
		boolean changed = true; // stock PostgreSQL does not know
		String now = null;
		try (Statement statement = connection.createStatement();
				ResultSet heartbeat = statement.executeQuery(HEARTBEAT_INTERVAL);
				PreparedStatement ask = connection.prepareStatement(CHANGED_SINCE)) {
			if (heartbeat.next()) {
				interval = heartbeat.getInt(1);
				ask.setString(1, position);
				try (ResultSet answer = ask.executeQuery()) {
					answer.next();
					changed = ((String[]) answer.getArray(1).getArray()).length > 0;
					now = answer.getString(2);
				}
			}
		}
		if (changed) {
			load(connection);
		} else {
			System.out.println("nothing missed");
		}
		position = now;

		while (!cache.containsKey("stop")) {
			PGNotification[] notifications = notifications(connection, 3 * interval);
			if (notifications.length == 0) {
				return;
			}
			for (PGNotification notification : notifications) {
				if (notification.getName().equals("pinpoint_heartbeat")) {
					position = notification.getParameter().split(" ")[0];
				} else {
					refresh(connection, notification.getParameter());
				}
			}
		}
	}

	private static void load(Connection connection) throws SQLException {
		Map<String, String> rows = new TreeMap<>();
		try (Statement statement = connection.createStatement();
				ResultSet settings = statement.executeQuery("SELECT key, value FROM settings")) {
			while (settings.next()) {
				rows.put(settings.getString(1), settings.getString(2));
			}
		}
		cache.clear();
		cache.putAll(rows);
		System.out.println("loaded " + rows.size());
		rows.forEach((key, value) -> System.out.println(key + " = " + value));
	}

	private static void refresh(Connection connection, String key) throws SQLException {
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
