package org.pgpinpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigDecimal;
import java.sql.SQLException;
import java.time.LocalDate;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.postgresql.util.PGobject;
import org.postgresql.util.PSQLException;
import org.postgresql.util.PSQLState;

/** Which queries are equal, and which errors are permanent. */
class ValuesTest {
  private static Object key(Object... parameters) {
    return Values.key("SELECT", parameters);
  }

  @Test
  void equalValuesAreEqual() {
    assertEquals(key(1, "a", null, true, LocalDate.EPOCH), key(1, "a", null, true, LocalDate.EPOCH));
    assertEquals(key(new byte[] {1}, new int[] {1}, new Object[] {"a", new String[] {"b"}}),
        key(new byte[] {1}, new int[] {1}, new Object[] {"a", new String[] {"b"}}));
  }

  @Test
  void otherValuesAreNot() {
    assertNotEquals(key(1), key(1L));
    assertNotEquals(key(new BigDecimal("1.0")), key(new BigDecimal("1")));
    assertNotEquals(key(0.0), key(-0.0));
    assertNotEquals(key("null"), key((Object) null));
    assertNotEquals(key(new java.sql.Date(0)), key(new java.sql.Timestamp(0)));
    assertNotEquals(key(new byte[] {1}), key(new byte[] {2}));
    assertNotEquals(key(new int[] {1}), key(new long[] {1}));
    assertNotEquals(Values.key("SELECT 1"), Values.key("SELECT 2"));
    PGobject incomparable = new PGobject();
    assertNotEquals(key(incomparable), key(incomparable));
  }

  @Test
  void equalQueriesShareAnExecution() {
    try (Client client = Client.of("postgresql://localhost:1")) {
      client.live("SELECT ?", List.of(1).toArray());
      client.live("SELECT ?", 1);
      assertEquals(1, client.live.size());
      client.live("SELECT ?", new PGobject()).close();
      client.live("SELECT ?", new PGobject());
      assertEquals(2, client.live.size());
    }
  }

  @Test
  void errorsArePermanentByTheirWholeCode() {
    for (String code : List.of("28000", "28P01", "3D000", "42501", "0A000", "08004")) {
      assertTrue(PinpointException.isPermanent(new SQLException("", code)), code);
    }
    for (String code : new String[] {null, "", "2", "28", "280000", "28001", "3D", "42", "42P01", "0A", "57P03"}) {
      assertFalse(PinpointException.isPermanent(new SQLException("", code)), code);
    }
    assertTrue(PinpointException.isPermanent(new PinpointException("", "0A000")));
    assertTrue(PinpointException.isPermanent(
        new PSQLException("", PSQLState.CONNECTION_FAILURE, new java.security.cert.CertificateException())));
    assertEquals("java.lang.OutOfMemoryError", PinpointException.reason(new OutOfMemoryError()));
  }
}
