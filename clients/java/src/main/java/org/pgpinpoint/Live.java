package org.pgpinpoint;

import java.util.Iterator;
import java.util.NoSuchElementException;

/** The results of a live query. The iterator blocks. A slow consumer gets the newest result. */
public final class Live implements Iterator<Result>, AutoCloseable {
  private final LiveQuery shared;
  private Result latest;
  private RuntimeException end;

  Live(LiveQuery shared) {
    this.shared = shared;
  }

  synchronized void put(Result result) {
    latest = result;
    notifyAll();
  }

  synchronized void end(RuntimeException error) {
    end = end == null ? error : end;
    notifyAll();
  }

  @Override
  public synchronized boolean hasNext() {
    while (latest == null && end == null) {
      try {
        wait();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new PinpointException("interrupted", null);
      }
    }
    return latest != null || !(end instanceof NoSuchElementException);
  }

  /** Wait for the next result. Throws a PinpointException if the client cannot go on. */
  @Override
  public synchronized Result next() {
    if (!hasNext() || latest == null) {
      throw end;
    }
    Result result = latest;
    latest = null;
    return result;
  }

  @Override
  public void close() {
    shared.remove(this);
    end(new NoSuchElementException());
  }
}
