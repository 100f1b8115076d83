package org.pgpinpoint;

import java.util.List;

/** An event of a live query: Rows, Failed, or an {@link Event.Disconnected}. */
public sealed interface Result permits Result.Rows, Result.Failed, Event.Disconnected {
  /** The result. Each row has its values in the order of columns. */
  record Rows(List<List<Object>> rows, List<String> columns) implements Result {}

  /**
   * The query, or its connection, has failed. It is tried again. The same error is told once. sqlState: that of the
   * server; 55000 if a table is not watched, 0A000 without pg_pinpoint 1.1, 42501 without a privilege; or null.
   */
  record Failed(String message, String sqlState) implements Result {}
}
