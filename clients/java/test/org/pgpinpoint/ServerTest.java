package org.pgpinpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** What needs a server. */
@EnabledIfEnvironmentVariable(named = "PINPOINT_DSN", matches = ".+")
class ServerTest extends WithServer {
  @Test
  void channelsComeAndGo() throws Exception {
    try (Client client = database().build(); Subscription subscription = client.subscribe("a")) {
      assertInstanceOf(Event.Connected.class, subscription.next(DEADLINE).orElseThrow());
      assertEquals(new Event.Changed(Set.of("a")), subscription.next(DEADLINE).orElseThrow());
      subscription.add("b");
      assertEquals(new Event.Changed(Set.of("b")), subscription.next(DEADLINE).orElseThrow());
      subscription.remove("a");
      client.subscribe("c").close();
      subscription.add("d"); // when it is heard, the others are not
      assertEquals(new Event.Changed(Set.of("d")), subscription.next(DEADLINE).orElseThrow());
      execute(database(), "NOTIFY a", "NOTIFY c", "NOTIFY b, 'yes'");
      assertEquals("yes", next(subscription, Event.Notification.class).payload());
    }
  }

  @Test
  void rowsOutliveTheirConnection() throws Exception {
    execute(database(), "CREATE EXTENSION pg_pinpoint");
    try (Client client = database().build();
        LiveQuery rows = client.live("SELECT ARRAY[[1, NULL], [3, 4]], ?::int, ARRAY['a']", 5);
        LiveQuery refused = client.live("SELECT NULL::refcursor, 'x'::refcursor")) {
      assertEquals(List.of(List.of(List.of(Arrays.asList(1, null), List.of(3, 4)), 5, List.of("a"))),
          next(rows, Result.Rows.class).rows());
      Result.Failed failed = next(refused, Result.Failed.class);
      assertTrue(failed.message() != null && failed.sqlState() != null, failed.toString());
    }
  }

  @Test
  void manyLiveQueriesNeedFewThreads() throws Exception {
    execute(database(), "CREATE EXTENSION pg_pinpoint", "CREATE TABLE t AS SELECT 0 AS n", "SELECT pinpoint.watch('t')");
    try (Client client = database().build()) {
      int before = Thread.activeCount();
      List<LiveQuery> queries = new ArrayList<>();
      for (int number = 0; number < 300; number++) {
        queries.add(client.live("SELECT n, ? FROM t", number));
      }
      for (int value = 0; value <= 1; value++) {
        for (int number = 0; number < 300; number++) {
          List<List<Object>> expected = List.of(List.of(value, number));
          while (!next(queries.get(number), Result.Rows.class).rows().equals(expected)) {
          }
        }
        assertTrue(Thread.activeCount() - before <= 4, "threads: " + (Thread.activeCount() - before));
        execute(database(), "UPDATE t SET n = n + 1");
      }
    }
  }

  /** pinpoint.sql does not notify of ALTER TABLE, and there are no heartbeats. */
  @Test
  void whatIsNotNotifiedIsLookedAt() throws Exception {
    Path managed = Path.of("..", "..", "managed", "pinpoint.sql");
    assumeTrue(Files.exists(managed), "only in a checkout");
    execute(database(), Files.readString(managed), "CREATE TABLE t (n int)", "SELECT pinpoint.watch('t')");
    try (Client client = database().checkInterval(Duration.ofMillis(100)).build();
        Subscription unfed = client.subscribe("unfed");
        LiveQuery live = client.live("SELECT * FROM t")) {
      next(unfed, Event.Changed.class);
      assertEquals(List.of("n"), next(live, Result.Rows.class).columns());
      execute(database(), "ALTER TABLE t ADD more int");
      assertEquals(List.of("n", "more"), next(live, Result.Rows.class).columns());
      // While notifications arrive all the time, it looks, too.
      Thread busy = new Thread(() -> {
        try (Connection connection = connect(database()); Statement statement = connection.createStatement()) {
          while (!Thread.interrupted()) {
            statement.execute("NOTIFY unfed");
          }
        } catch (SQLException e) {
          throw new AssertionError(e);
        }
      });
      busy.start();
      try {
        next(unfed, Event.Notification.class);
        execute(database(), "ALTER TABLE t ADD most int");
        assertEquals(List.of("n", "more", "most"), next(live, Result.Rows.class).columns());
      } finally {
        busy.interrupt();
        busy.join();
      }
      // A channel of a subscription is not looked at: an unfed one counts as changed each time.
      for (Optional<Event> event; (event = unfed.next(Duration.ZERO)).isPresent();) {
        assertInstanceOf(Event.Notification.class, event.get());
      }
    }
  }

  @Test
  void anOldExtensionHasNoLiveQueries() throws Exception {
    execute(database(), "CREATE EXTENSION pg_pinpoint VERSION '1.0'");
    try (Client client = database().build(); LiveQuery live = client.live("SELECT 1")) {
      Result.Failed failed = next(live, Result.Failed.class);
      assertEquals("0A000", failed.sqlState());
      assertTrue(failed.message().contains("needs pg_pinpoint 1.1"), failed.message());
      execute(database(), "ALTER EXTENSION pg_pinpoint UPDATE");
      next(live, Result.Rows.class);
    }
  }

  /** A consumer that comes while a live query fails need not wait for the next execution. */
  @Test
  void aFailureIsToldAtOnce() throws Exception {
    execute(database(), "CREATE EXTENSION pg_pinpoint VERSION '1.0'");
    Duration day = Duration.ofDays(1);
    try (Client client = database().maxBackoff(day).minBackoff(day).build();
        LiveQuery first = client.live("SELECT 1")) {
      Result.Failed failed = next(first, Result.Failed.class);
      try (LiveQuery second = client.live("SELECT 1")) {
        assertEquals(failed, next(second, Result.Failed.class));
      }
    }
  }

  @Test
  void aRoleWithoutUsageSubscribes() throws Exception {
    execute(database(), "CREATE EXTENSION pg_pinpoint", "REVOKE USAGE ON SCHEMA pinpoint FROM PUBLIC");
    try (Client client = database().property("user", "pinpoint_test").build();
        Subscription subscription = client.subscribe("a");
        LiveQuery live = client.live("SELECT 1")) {
      assertEquals(Set.of("a"), next(subscription, Event.Changed.class).channels());
      execute(database(), "NOTIFY a");
      assertEquals("a", next(subscription, Event.Notification.class).channel());
      Result.Failed failed = next(live, Result.Failed.class);
      assertEquals("42501", failed.sqlState());
      assertTrue(failed.message().contains("GRANT USAGE ON SCHEMA pinpoint TO \"pinpoint_test\""), failed.message());
    }
  }

  @Test
  void anIdleSessionIsNotEnded() throws Exception {
    execute(database(), "ALTER ROLE pinpoint_test SET idle_session_timeout = '300ms'");
    try (Client client = database().property("user", "pinpoint_test").build();
        Subscription subscription = client.subscribe("a")) {
      next(subscription, Event.Changed.class);
      assertTrue(subscription.next(Duration.ofSeconds(1)).isEmpty());
    }
  }
}
