package org.pgpinpoint;

import java.sql.SQLException;

/** A subscription or a live query cannot go on. */
public class PinpointException extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private final String sqlState;

  PinpointException(String message, String sqlState) {
    super(message);
    this.sqlState = sqlState;
  }

  /** What an error says: some of Java have no message. */
  static String reason(Throwable error) {
    return error.getMessage() == null ? error.toString() : error.getMessage();
  }

  /** The SQLSTATE of an error, null if there is none. */
  static String sqlState(Throwable error) {
    if (error instanceof SQLException sql) {
      return sql.getSQLState();
    }
    return error instanceof PinpointException pinpoint ? pinpoint.sqlState : null;
  }

  /** The SQLSTATE, null if the server has sent none. */
  public String sqlState() {
    return sqlState;
  }
}
