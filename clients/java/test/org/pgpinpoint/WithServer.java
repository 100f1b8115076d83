package org.pgpinpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.postgresql.Driver;

/**
 * A database pinpoint_test and a role of this name, on the server of PINPOINT_DSN, whose role is a superuser. Tests with
 * it are enabled only with PINPOINT_DSN.
 */
abstract class WithServer {
  static final String DSN = System.getenv("PINPOINT_DSN");
  static final Duration DEADLINE = Duration.ofSeconds(60);

  static Connection connect(ClientBuilder to) throws SQLException {
    return new Driver().connect("jdbc:postgresql:///", to.properties);
  }

  static ClientBuilder database() {
    return Client.builder(DSN).property("PGDBNAME", "pinpoint_test").minBackoff(Duration.ofMillis(10))
        .maxBackoff(Duration.ofMillis(100));
  }

  static void execute(ClientBuilder to, String... statements) throws SQLException {
    try (Connection connection = connect(to); Statement statement = connection.createStatement()) {
      for (String text : statements) {
        statement.execute(text);
      }
    }
  }

  @BeforeEach
  void create() throws SQLException {
    drop();
    execute(Client.builder(DSN), "CREATE DATABASE pinpoint_test", "CREATE ROLE pinpoint_test LOGIN");
  }

  @AfterEach
  void drop() throws SQLException {
    execute(Client.builder(DSN), "DROP DATABASE IF EXISTS pinpoint_test WITH (FORCE)",
        "DROP ROLE IF EXISTS pinpoint_test");
  }

  static <T> T next(Events<? super T> events, Class<T> kind) throws InterruptedException {
    while (true) {
      Object event = events.next(DEADLINE).orElseThrow();
      if (kind.isInstance(event)) {
        return kind.cast(event);
      }
    }
  }

  /**
   * End all sessions of the database but this one, and wait until they have ended: a job that commits before would not
   * run again.
   */
  static void endSessions() throws SQLException {
    execute(database(), "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
        + " WHERE datname = current_database() AND pid <> pg_backend_pid()");
  }

  /** The class of a source file, which is compiled without warnings into a folder. */
  static Class<?> load(Path source, Path classes) throws Exception {
    assumeTrue(Files.exists(source), "only in a checkout");
    assertEquals(0, ToolProvider.getSystemJavaCompiler().run(null, null, null, "-Xlint:all", "-Werror", "-d",
        classes.toString(), "-cp", System.getProperty("java.class.path"), source.toString()));
    ClassLoader loader = new URLClassLoader(new URL[] {classes.toUri().toURL()}, WithServer.class.getClassLoader());
    return loader.loadClass(source.getFileName().toString().replace(".java", ""));
  }
}
