package org.pgpinpoint;

/** The final error after close() of the client. */
public final class ClientClosedException extends PinpointException {
  private static final long serialVersionUID = 1L;

  ClientClosedException(Throwable cause) {
    super("the client is closed", null, cause);
  }
}
