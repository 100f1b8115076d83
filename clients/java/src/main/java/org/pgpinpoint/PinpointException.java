package org.pgpinpoint;

/** A subscription or a live query cannot go on. */
public class PinpointException extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private final String sqlState;

  PinpointException(String message, String sqlState) {
    super(message);
    this.sqlState = sqlState;
  }

  /** The SQLSTATE, null if the server has sent none. */
  public String sqlState() {
    return sqlState;
  }
}
