package org.pgpinpoint;

import java.time.Duration;
import java.util.HashSet;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Set;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;

/**
 * What a consumer waits for. All iterators of it take from the same events. They block, and go on until close(), which
 * another thread can call.
 *
 * @param <T> Event, or Result
 */
public abstract sealed class Events<T> implements Iterable<T>, AutoCloseable permits Subscription, LiveQuery {
  private final ReentrantLock lock = new ReentrantLock();
  private final Condition arrived = lock.newCondition();
  private RuntimeException end; // a NoSuchElementException is the end without an error

  Events() {}

  /** Take the next item, null if there is none. Called with the lock held, as all that changes the items. */
  abstract T poll();

  /** Change the items. */
  void change(Runnable change) {
    lock.lock();
    try {
      change.run();
      arrived.signalAll();
    } finally {
      lock.unlock();
    }
  }

  /** After the items that are there. */
  void end(RuntimeException error) {
    change(() -> end = end == null ? error : end);
  }

  /**
   * Wait for the next one.
   *
   * @throws PinpointException the final error; or "interrupted", and then the thread is still interrupted
   * @throws NoSuchElementException after close()
   */
  public T next() {
    try {
      return next(Duration.ofNanos(Long.MAX_VALUE)).orElseThrow();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new PinpointException("interrupted", null, e);
    }
  }

  /**
   * Wait for the next one, for at most this time. Empty: there was none.
   *
   * @throws PinpointException the final error
   * @throws NoSuchElementException after close()
   * @throws InterruptedException if the thread is interrupted
   */
  public Optional<T> next(Duration timeout) throws InterruptedException {
    lock.lockInterruptibly();
    try {
      T item = poll();
      for (long rest = TimeUnit.NANOSECONDS.convert(timeout); item == null && end == null && rest > 0; item = poll()) {
        rest = arrived.awaitNanos(rest);
      }
      if (item == null && end != null) {
        throw end;
      }
      return Optional.ofNullable(item);
    } finally {
      lock.unlock();
    }
  }

  /** Its hasNext() waits for the next one. It is false after close(), and throws the final error. */
  @Override
  public Iterator<T> iterator() {
    return Spliterators.iterator(new Spliterators.AbstractSpliterator<T>(Long.MAX_VALUE, Spliterator.ORDERED) {
      @Override
      public boolean tryAdvance(Consumer<? super T> action) {
        try {
          action.accept(next());
          return true;
        } catch (NoSuchElementException e) {
          return false;
        }
      }
    });
  }

  /** End it for this consumer, without an error. */
  @Override
  public abstract void close();

  /** A subscription or an execution, as the listener sees it. Called with the lock of the client held. */
  abstract static class Subscriber {
    final Set<String> channels = new HashSet<>(); // kept by the index

    abstract void put(Event event);

    abstract void end(RuntimeException error);
  }
}
