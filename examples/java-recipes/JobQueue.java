import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;
import org.pgpinpoint.Client;
import org.pgpinpoint.Subscription;
import org.postgresql.PGConnection;

/**
 * A job queue: the workers of a process share one client. Any number of processes can run.
 *
 * <p>PINPOINT_DSN="jdbc:postgresql://localhost/shop?user=me" java -cp "lib/*" JobQueue.java
 *
 * <p>Needs a table that is watched: CREATE TABLE jobs (id bigserial, payload text); SELECT pinpoint.watch('jobs').
 *
 * <p>Behind a pooler in transaction mode, each client holds a connection of the pool nearly all the time, in
 * pinpoint.wait(). So make the pool larger than the number of clients, by the number of jobs that run at the same time.
 */
public final class JobQueue {
  private static final int WORKERS = 50;
  private static final String TAKE = "DELETE FROM jobs WHERE id ="
      + " (SELECT id FROM jobs ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING payload";

  public static void main(String[] arguments) throws InterruptedException {
    run(System.getenv("PINPOINT_DSN"), payload -> System.out.println("done: " + payload));
  }

  /** Do jobs until an interrupt. */
  public static void run(String url, Consumer<String> job) throws InterruptedException {
    BlockingQueue<Boolean> looks = new ArrayBlockingQueue<>(1); // one look is enough for any number of events
    ExecutorService workers = Executors.newFixedThreadPool(WORKERS);
    try (Client client = Client.of(url); Subscription events = client.subscribe("jobs")) {
      for (int i = 0; i < WORKERS; i++) {
        workers.submit(() -> work(url, looks, job));
      }
      while (true) { // without an event, look once a minute: another process may have ended in the middle of a job
        events.next(Duration.ofMinutes(1));
        looks.offer(true);
      }
    } finally {
      workers.shutdownNow();
    }
  }

  private static Void work(String url, BlockingQueue<Boolean> looks, Consumer<String> job) throws InterruptedException {
    while (true) {
      try (Connection connection = DriverManager.getConnection(url)) {
        connection.unwrap(PGConnection.class).setPrepareThreshold(0); // as a pooler may change the session
        connection.setAutoCommit(false);
        Statement take = connection.createStatement();
        while (true) {
          looks.take();
          ResultSet taken = take.executeQuery(TAKE);
          if (taken.next()) {
            looks.offer(true); // there may be more: they are for the other workers
            job.accept(taken.getString(1));
          }
          connection.commit();
        }
      } catch (SQLException | RuntimeException e) {
        System.err.println("the job is free again: " + e);
        Thread.sleep(1000);
        looks.offer(true);
      }
    }
  }
}
