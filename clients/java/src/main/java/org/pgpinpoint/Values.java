package org.pgpinpoint;

import java.lang.reflect.Array;
import java.nio.ByteBuffer;
import java.sql.Blob;
import java.sql.Clob;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLXML;
import java.time.temporal.Temporal;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.stream.IntStream;

/** Values of parameters and rows. */
final class Values {
  private Values() {}

  /** What equal queries with equal parameters have in common. Objects whose equality is not known are never equal. */
  static Object key(String query, Object... parameters) {
    return List.of(query, elements(parameters));
  }

  private static Object key(Object value) {
    if (value == null) {
      return "null";
    } else if (value instanceof byte[] bytes) {
      return ByteBuffer.wrap(bytes.clone());
    } else if (value.getClass().isArray()) {
      return List.of(value.getClass(), elements(value));
    } else if (value instanceof String || value instanceof Number || value instanceof Boolean || value instanceof Character
        || value instanceof Temporal || value instanceof java.util.Date || value instanceof UUID) {
      return List.of(value.getClass(), value); // of different types they can be equal, such as Date and Timestamp
    }
    return new Object();
  }

  private static List<Object> elements(Object array) {
    return IntStream.range(0, Array.getLength(array)).mapToObj(i -> key(Array.get(array, i))).toList();
  }

  /** A value of a row, without a tie to its connection. Arrays become lists, and XML becomes a String. */
  static Object detach(Object value) throws SQLException {
    if (value instanceof java.sql.Array array) {
      return list((Object[]) array.getArray());
    } else if (value instanceof SQLXML xml) {
      return xml.getString();
    } else if (value instanceof Blob || value instanceof Clob || value instanceof ResultSet) {
      throw new PinpointException("the query has a column of the type " + value.getClass().getSimpleName()
          + ", which cannot be used after its execution: cast it to text", "0A000");
    }
    return value;
  }

  private static List<Object> list(Object[] array) throws SQLException {
    Object[] elements = new Object[array.length];
    for (int i = 0; i < array.length; i++) {
      elements[i] = array[i] instanceof Object[] inner ? list(inner) : detach(array[i]);
    }
    return Collections.unmodifiableList(Arrays.asList(elements));
  }
}
