package org.pgpinpoint;

import java.util.NoSuchElementException;

/** The results of a live query. A slow consumer gets the newest result. */
public final class Live extends Events<Result> implements AutoCloseable {
  private final LiveQuery shared;
  private Result latest;
  private Result.Failed told; // the last result, if it was an error

  Live(LiveQuery shared) {
    this.shared = shared;
  }

  synchronized void put(Result result) {
    Result.Failed failed = result instanceof Result.Failed f ? f : null;
    if (failed != null && failed.equals(told)) {
      return;
    }
    told = failed;
    latest = result;
    notifyAll();
  }

  @Override
  boolean isEmpty() {
    return latest == null;
  }

  @Override
  Result take() {
    Result result = latest;
    latest = null;
    return result;
  }

  /** End the live query for this consumer, without an error. The last one also ends its execution. */
  @Override
  public void close() {
    end(new NoSuchElementException());
    shared.remove(this);
  }
}
