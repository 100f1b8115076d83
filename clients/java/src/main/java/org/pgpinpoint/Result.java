package org.pgpinpoint;

import java.util.List;

/** The result of a live query. */
public sealed interface Result {
  record Rows(List<List<Object>> rows, List<String> columns) implements Result {}

  /** The query has failed. It is tried again. sqlState: null if the server has sent none. */
  record Failed(String message, String sqlState) implements Result {}
}
