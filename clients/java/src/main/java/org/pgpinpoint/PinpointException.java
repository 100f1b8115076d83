package org.pgpinpoint;

import java.net.SocketTimeoutException;
import java.sql.SQLException;
import java.util.Set;

/** A subscription or a live query cannot go on. */
public class PinpointException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  /**
   * SQLSTATEs of errors that another attempt does not mend: no such role or not admitted, a wrong password, no such
   * database, a missing privilege, and what the server cannot do: pinpoint.wait() needs READ COMMITTED. 08004: pgJDBC
   * has no password, or cannot do the authentication that the server asks for. A proxy may send any text, or none.
   */
  private static final Set<String> PERMANENT = Set.of("28000", "28P01", "3D000", "42501", "0A000", "08004");

  private final String sqlState;

  PinpointException(String message, String sqlState, Throwable cause) {
    super(message, cause);
    this.sqlState = sqlState;
  }

  PinpointException(String message, String sqlState) {
    this(message, sqlState, null);
  }

  /** The SQLSTATE, null if the server has sent none. */
  public String sqlState() {
    return sqlState;
  }

  /** What an error says: some of Java have no message, and the driver does not name a timeout. */
  static String reason(Throwable error) {
    if (error.getCause() instanceof SocketTimeoutException) {
      return "the server does not answer";
    }
    return error.getMessage() == null || error.getMessage().isBlank() ? error.toString() : error.getMessage();
  }

  /** The SQLSTATE of an error, null if there is none. */
  static String sqlState(Throwable error) {
    if (error instanceof SQLException sql) {
      return sql.getSQLState();
    }
    return error instanceof PinpointException pinpoint ? pinpoint.sqlState : null;
  }

  /** Does another attempt to make the first connection not mend it? */
  static boolean isPermanent(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof java.security.cert.CertificateException) {
        return true;
      }
    }
    String state = sqlState(error);
    return error instanceof PinpointException || state != null && PERMANENT.contains(state);
  }
}
