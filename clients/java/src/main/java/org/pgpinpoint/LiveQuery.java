package org.pgpinpoint;

import java.util.NoSuchElementException;

/** The results of a live query. A slow consumer gets the newest result. */
public final class LiveQuery extends Events<Result> {
  private final Execution execution;

  // The lock of the events protects these fields.
  private Result latest;
  private Result.Failed told; // the last result, if it was an error

  LiveQuery(Execution execution) {
    this.execution = execution;
  }

  /** An error that repeats is told once. */
  void put(Result result) {
    change(() -> {
      Result.Failed failed = result instanceof Result.Failed f ? f : null;
      if (failed == null || !failed.equals(told)) {
        told = failed;
        latest = result;
        execution.client.counters.given.increment();
      }
    });
  }

  @Override
  Result poll() {
    Result result = latest;
    latest = null;
    return result;
  }

  /** End the live query for this consumer, without an error. The last one also ends its execution. */
  @Override
  public void close() {
    end(new NoSuchElementException("the live query is closed"));
    execution.remove(this);
  }
}
