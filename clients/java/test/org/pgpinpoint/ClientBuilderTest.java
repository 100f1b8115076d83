package org.pgpinpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;

/** Options and connection strings. */
class ClientBuilderTest {
  private static final String URL = "jdbc:postgresql://localhost/shop";

  private static void refused(String name, Consumer<ClientBuilder> set) {
    String message = assertThrows(IllegalArgumentException.class, () -> set.accept(Client.builder(URL))).getMessage();
    assertTrue(message.matches(name + " is .*, and must be .+"), message);
  }

  @Test
  void optionsOutOfRangeAreRefused() {
    Duration negative = Duration.ofMillis(-1);
    Duration tooLong = Duration.ofDays(2);
    for (Duration wrong : new Duration[] {null, negative, tooLong}) {
      refused("minInterval", b -> b.minInterval(wrong));
      refused("minBackoff", b -> b.minBackoff(wrong));
      refused("maxBackoff", b -> b.maxBackoff(wrong));
      refused("timeout", b -> b.timeout(wrong));
      refused("queryTimeout", b -> b.queryTimeout(wrong));
      refused("checkInterval", b -> b.checkInterval(wrong));
      refused("probeTimeout", b -> b.probeTimeout(wrong));
    }
    refused("timeout", b -> b.timeout(Duration.ZERO));
    refused("timeout", b -> b.timeout(ClientBuilder.UNLIMITED));
    refused("mode", b -> b.mode(null));
    refused("buffer", b -> b.buffer(-1));
    refused("maxAttempts", b -> b.maxAttempts(-1));
    refused("queryConnections", b -> b.queryConnections(0));
    refused("minBackoff", b -> b.minBackoff(Duration.ofSeconds(20)).build());
  }

  @Test
  void optionsInRangeAreTaken() {
    Client.builder(URL).minInterval(Duration.ZERO).queryTimeout(ClientBuilder.UNLIMITED)
        .maxAttempts(ClientBuilder.UNLIMITED_ATTEMPTS).build().close();
  }

  @Test
  void wrongUrlsAreRefusedWithoutTheirPassword() {
    for (String url : List.of("jdbc:mysql://localhost/shop?password=secret", "localhost", "",
        "jdbc:postgresql://me:secret@localhost/shop", "postgresql://me:secret@localhost:secret/shop",
        "postgresql://me:secret@localhost/shop?unknown=secret", "postgresql://me:sec@ret@localhost/shop",
        "postgresql://me:%zzsecret@localhost/shop", "postgresql://me:secret/x@localhost/shop",
        "postgresql://me:secret@localhost/shop?password")) {
      Exception error = assertThrows(IllegalArgumentException.class, () -> Client.builder(url), url);
      assertFalse(error.toString().contains("secret"), error.toString());
    }
  }

  @Test
  void urlsAreTakenApart() {
    assertEquals(Map.of("PGHOST", "a,b", "PGPORT", "5432,6", "PGDBNAME", "my shop", "user", "me", "password", "a+b,/%",
        "sslmode", "require", "targetServerType", "primary", "ApplicationName", "page"),
        Client.builder("postgresql://me:a+b,%2F%25@a,b:6/my%20shop?sslmode=require&target_session_attrs=read-write"
            + "&application_name=page").properties);
    assertEquals(Map.of("PGHOST", "[::1]", "PGPORT", "6"), Client.builder("postgres://[::1]:6").properties);
    assertEquals(Map.of("PGHOST", "a,b", "PGPORT", "5432,6", "PGDBNAME", "shop", "user", "me", "password", "x&y"),
        Client.builder("jdbc:postgresql://a,b:6/shop?user=me&password=x%26y").properties);
  }

  @Test
  void timesBetweenAttemptsDoubleUpToALimit() {
    ClientBuilder options = Client.builder(URL).minBackoff(Duration.ofMillis(100)).maxBackoff(Duration.ofSeconds(1));
    long[] longest = {100, 200, 400, 800, 1000, 1000};
    for (int failures = 1; failures <= longest.length; failures++) {
      assertEquals(longest[failures - 1] / 2, Backoff.delay(options, failures, () -> 0).toMillis());
      assertEquals(longest[failures - 1] * 3 / 4, Backoff.delay(options, failures, () -> 0.5).toMillis());
    }
    assertEquals(500, Backoff.delay(options, Integer.MAX_VALUE, () -> 0).toMillis());
  }
}
