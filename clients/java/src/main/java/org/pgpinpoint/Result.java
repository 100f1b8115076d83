package org.pgpinpoint;

import java.util.List;

/** An event of a live query. */
public sealed interface Result {
  /** The result. Each row has its values in the order of columns. */
  record Rows(List<List<Object>> rows, List<String> columns) implements Result {}

  /**
   * The query, or its connection, has failed. It is tried again. The same error is told once. sqlState: that of the
   * server; 55000 if a table is not watched, 0A000 without pg_pinpoint 1.1; or null.
   */
  record Failed(String message, String sqlState) implements Result {}

  /** The connection was lost, or could not be made. The next attempt is in retryIn seconds. */
  record Disconnected(String reason, double retryIn) implements Result {}
}
