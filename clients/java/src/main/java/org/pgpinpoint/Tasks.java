package org.pgpinpoint;

import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * Threads for tasks of a client. They stay until shutdownNow(): if idle ones ended, no thread could be left for a
 * task that begins later while another one runs. Whatever a task throws is told. After shutdownNow(), no task begins.
 */
final class Tasks extends ScheduledThreadPoolExecutor {
  private final Consumer<Throwable> failed;

  Tasks(int threads, ThreadFactory factory, Consumer<Throwable> failed) {
    super(threads, factory, new DiscardPolicy());
    this.failed = failed;
    setRemoveOnCancelPolicy(true); // otherwise a canceled task stays until its time
  }

  /** The default: virtual threads where Java has them, and daemon threads otherwise. */
  static ThreadFactory newFactory() {
    try {
      Object builder = Thread.class.getMethod("ofVirtual").invoke(null);
      return (ThreadFactory) Class.forName("java.lang.Thread$Builder").getMethod("factory").invoke(builder);
    } catch (ReflectiveOperationException e) { // before Java 21
      return task -> {
        Thread thread = new Thread(task, "pg_pinpoint");
        thread.setDaemon(true);
        return thread;
      };
    }
  }

  /** Also what execute() calls. Returns null if there is no thread, which is told, too. */
  @Override
  public ScheduledFuture<?> schedule(Runnable task, long delay, TimeUnit unit) {
    try {
      return super.schedule(() -> guard(task), delay, unit);
    } catch (RuntimeException | Error e) {
      failed.accept(e);
      return null;
    }
  }

  private void guard(Runnable task) {
    try {
      task.run();
    } catch (Throwable e) { // also of the Java machine: otherwise nothing would be told
      failed.accept(e);
    }
  }
}
