package org.pgpinpoint;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.sun.net.httpserver.HttpServer;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.Statement;
import java.time.Duration;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** The program of README.md and the recipes, whose sessions end in the middle. */
@EnabledIfEnvironmentVariable(named = "PINPOINT_DSN", matches = ".+")
class ProgramsTest extends WithServer {
  private static final Path RECIPES = Path.of("..", "..", "examples", "java-recipes");
  private static final String URL = "postgresql://postgres@localhost/postgres";
  private static final Properties SERVER = DSN == null ? null : Client.builder(DSN).properties;

  private static void createOrders() throws Exception {
    execute(database(), "CREATE EXTENSION pg_pinpoint", "CREATE TABLE orders (id int, total int)",
        "INSERT INTO orders VALUES (1, 10)", "SELECT pinpoint.watch('orders')");
  }

  /** Read lines until one begins with this. */
  private static void expect(BufferedReader lines, String start) throws IOException {
    for (String line; (line = lines.readLine()) != null;) {
      if (line.startsWith(start)) {
        return;
      }
    }
    throw new AssertionError("there is no line " + start);
  }

  private static void await(Callable<Boolean> condition) throws Exception {
    for (long end = System.nanoTime() + DEADLINE.toNanos(); !condition.call(); Thread.sleep(5)) {
      assertTrue(System.nanoTime() < end);
    }
  }

  private static int number(String query) {
    try (Connection connection = connect(database()); Statement statement = connection.createStatement();
        ResultSet row = statement.executeQuery(query)) {
      row.next();
      return row.getInt(1);
    } catch (java.sql.SQLException e) { // its session was ended, too
      return -1;
    }
  }

  @Test
  void theProgramOfTheReadme(@TempDir Path folder) throws Exception {
    createOrders();
    Matcher program = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(Files.readString(Path.of("README.md")));
    assertTrue(program.find() && program.group(1).contains(URL));
    Path source = folder.resolve("Orders.java");
    String url = DSN.replaceFirst("(//[^/?]*)(/[^?]*)?", "$1/pinpoint_test");
    Files.writeString(source, program.group(1).replace(URL, url));
    Process process = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-cp",
        System.getProperty("java.class.path"), source.toString()).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    try {
      BufferedReader lines = process.inputReader();
      expect(lines, "[id, total]: [[1, 10]]");
      endSessions();
      expect(lines, "not connected: ");
      execute(database(), "UPDATE orders SET total = 20");
      expect(lines, "[id, total]: [[1, 20]]");
    } finally {
      process.destroy();
    }
  }

  @Test
  void serverSentEvents(@TempDir Path folder) throws Exception {
    Method start = load(RECIPES.resolve("ServerSentEvents.java"), folder).getMethod("start", Client.class, int.class);
    createOrders();
    try (Client client = database().build()) {
      HttpServer server = (HttpServer) start.invoke(null, client, 0);
      try (Socket browser = new Socket(server.getAddress().getAddress(), server.getAddress().getPort())) {
        browser.setSoTimeout((int) DEADLINE.toMillis());
        browser.getOutputStream().write("GET / HTTP/1.1\r\nHost: test\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
        BufferedReader lines = new BufferedReader(new InputStreamReader(browser.getInputStream(), StandardCharsets.UTF_8));
        expect(lines, "data: [{\"id\": 1, \"total\": 10}]");
        endSessions();
        expect(lines, "event: stale");
        execute(database(), "UPDATE orders SET total = 20");
        expect(lines, "data: [{\"id\": 1, \"total\": 20}]");
      }
      await(() -> {
        synchronized (client) {
          return client.live.isEmpty();
        }
      });
      server.stop(0);
      ((ExecutorService) server.getExecutor()).shutdownNow();
    }
  }

  /** 600 jobs, of which 50 run at the same time, and sessions that end in the middle. */
  private static void doJobs(Path folder, String url) throws Exception {
    Method run = load(RECIPES.resolve("JobQueue.java"), folder).getMethod("run", String.class, Consumer.class);
    execute(database(), "CREATE EXTENSION pg_pinpoint", "CREATE TABLE jobs (id bigserial, payload text)",
        "SELECT pinpoint.watch('jobs')");
    Set<String> done = ConcurrentHashMap.newKeySet();
    AtomicInteger runs = new AtomicInteger();
    AtomicInteger running = new AtomicInteger();
    AtomicReference<CountDownLatch> gate = new AtomicReference<>(new CountDownLatch(0));
    CountDownLatch allRun = new CountDownLatch(50);
    Consumer<String> job = payload -> {
      runs.incrementAndGet();
      running.incrementAndGet();
      allRun.countDown();
      assertDoesNotThrow(() -> allRun.await());
      assertDoesNotThrow(() -> gate.get().await());
      assertDoesNotThrow(() -> Thread.sleep(50));
      running.decrementAndGet();
      done.add(payload);
    };
    Thread queue = new Thread(() -> assertThrows(InvocationTargetException.class, () -> run.invoke(null, url, job)));
    queue.start();
    try {
      for (int first = 0; first < 600; first += 200) {
        int before = first;
        if (first == 200) {
          gate.set(new CountDownLatch(1));
        }
        execute(database(), "INSERT INTO jobs (payload) SELECT n::text FROM generate_series(" + first + ", "
            + (first + 199) + ") n");
        if (first == 200) {
          await(() -> running.get() == 50);
          endSessions();
          gate.get().countDown();
        }
        await(() -> done.size() == before + 200);
      }
      await(() -> number("SELECT count(*) FROM jobs") == 0);
    } finally {
      queue.interrupt();
      queue.join();
    }
    assertTrue(runs.get() >= 650, "those that were running run again");
  }

  @Test
  void jobQueue(@TempDir Path folder) throws Exception {
    doJobs(folder, "jdbc:postgresql://" + SERVER.getProperty("PGHOST") + ":" + SERVER.getProperty("PGPORT")
        + "/pinpoint_test?user=" + SERVER.getProperty("user") + "&password=" + SERVER.getProperty("password", ""));
  }

  /** Its pool has place for a client and 50 workers. */
  @Test
  void jobQueueBehindAPooler(@TempDir Path folder) throws Exception {
    Optional<Path> program = Stream.of(("/usr/sbin:" + System.getenv("PATH")).split(":"))
        .map(name -> Path.of(name, "pgbouncer")).filter(Files::isExecutable).findFirst();
    assumeTrue(program.isPresent(), "there is no PgBouncer");
    Path configuration = folder.resolve("pgbouncer.ini");
    for (int attempt = 1; ; attempt++) {
      int port = freePort();
      Files.writeString(configuration, """
          [databases]
          * = host=%s port=%s user=%s password='%s'
          [pgbouncer]
          listen_addr = 127.0.0.1
          listen_port = %d
          unix_socket_dir =
          auth_type = any
          pool_mode = transaction
          default_pool_size = 55
          ignore_startup_parameters = extra_float_digits
          %s
          """.formatted(SERVER.getProperty("PGHOST"), SERVER.getProperty("PGPORT"), SERVER.getProperty("user"),
          SERVER.getProperty("password", "none"), port,
          System.getProperty("user.name").equals("root") ? "user = nobody" : "")); // after it has read this as root
      Process pooler = new ProcessBuilder(program.get().toString(), "-q", configuration.toString()).inheritIO().start();
      try {
        await(() -> isListening(port) || !pooler.isAlive());
        if (pooler.isAlive()) {
          doJobs(folder, "jdbc:postgresql://127.0.0.1:" + port + "/pinpoint_test?user=u");
          return;
        }
        assertTrue(attempt < 5, "PgBouncer does not start"); // another program may have taken the port
      } finally {
        pooler.destroyForcibly().waitFor();
      }
    }
  }

  private static int freePort() throws IOException {
    try (ServerSocket free = new ServerSocket(0)) {
      return free.getLocalPort();
    }
  }

  private static boolean isListening(int port) {
    try (Socket socket = new Socket("127.0.0.1", port)) {
      return true;
    } catch (IOException e) {
      return false;
    }
  }

  @Test
  void cache(@TempDir Path folder) throws Exception {
    Class<?> type = load(RECIPES.resolve("Cache.java"), folder);
    createOrders();
    try (Client client = database().build()) {
      AtomicInteger reads = new AtomicInteger();
      AtomicReference<Callable<?>> afterRead = new AtomicReference<>(() -> null);
      Function<String, Integer> read = channel -> {
        reads.incrementAndGet();
        int value = number("SELECT total FROM orders");
        assertDoesNotThrow(() -> afterRead.getAndSet(() -> null).call());
        return value;
      };
      Object cache = type.getConstructors()[0].newInstance(client, read);
      Method get = type.getMethod("get", String.class);
      Thread follower = new Thread((Runnable) cache);
      follower.setUncaughtExceptionHandler((thread, end) -> { }); // the client is closed
      follower.start();
      for (int value = 11; value < 20; value++) {
        if (value % 3 == 0) {
          endSessions();
        }
        execute(database(), "UPDATE orders SET total = " + value);
        int expected = value;
        await(() -> get.invoke(cache, "orders").equals(expected));
        await(() -> { // hits
          int before = reads.get();
          assertEquals(expected, get.invoke(cache, "orders"));
          return reads.get() == before;
        });
      }
      // A value that was read before a change, and arrives after it, is not stored.
      try (Subscription later = client.subscribe("orders")) {
        next(later, Event.Changed.class);
        afterRead.set(() -> {
          while (later.next(Duration.ZERO).isPresent()) {
          }
          execute(database(), "UPDATE orders SET total = 31");
          next(later, Event.Notification.class);
          await(() -> follower.getState() == Thread.State.TIMED_WAITING); // it has got it, too
          return null;
        });
        execute(database(), "UPDATE orders SET total = 30");
        await(() -> get.invoke(cache, "orders").equals(31));
      }
      client.close();
      follower.join();
      int before = reads.get();
      get.invoke(cache, "orders");
      assertEquals(before + 1, reads.get()); // nobody would drop it
    }
  }
}
