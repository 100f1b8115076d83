package org.pgpinpoint;

import java.util.Map;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.postgresql.Driver;
import org.postgresql.PGProperty;

/** Takes URLs of pgJDBC and URIs of libpq apart. No exception contains the text, as there may be a password in it. */
final class ConnectionString {
  private static final String HOST = "(?:\\[[^\\]]*\\]|[^/?@:,]*)(?::\\d{1,5})?";
  private static final Pattern URI = Pattern.compile("postgres(?:ql)?://(?:([^:@/?]*)(?::([^@/?]*))?@)?("
      + HOST + "(?:," + HOST + ")*)(?:/([^?]*))?(?:\\?(.*))?");
  // What libpq calls otherwise than pgJDBC.
  private static final Map<String, String> NAMES = Map.of("host", "PGHOST", "port", "PGPORT", "dbname", "PGDBNAME",
      "application_name", "ApplicationName", "connect_timeout", "connectTimeout", "target_session_attrs",
      "targetServerType", "sslnegotiation", "sslNegotiation", "gssencmode", "gssEncMode", "krbsrvname",
      "kerberosServerName");
  private static final Map<String, String> SERVER_TYPES = Map.of("read-write", "primary", "read-only", "secondary",
      "standby", "secondary", "prefer-standby", "preferSecondary");

  private ConnectionString() {}

  /** The properties that the driver makes of it; with them, it takes the URL jdbc:postgresql:///. */
  static Properties parse(String text) {
    Matcher uri = URI.matcher(text);
    String url = uri.matches() ? translate(uri) : text;
    // The driver would log a password before the host, or in a text that it does not know.
    boolean isKnown = url.matches("jdbc:postgresql:[^?@]*(\\?.*)?");
    Properties parsed = isKnown ? Driver.parseURL(url, new Properties()) : null;
    if (parsed == null) {
      throw new IllegalArgumentException("the URL is neither jdbc:postgresql://host:port/database?user=...&password=..."
          + " nor postgresql://user:password@host:port/database");
    }
    Properties properties = new Properties();
    parsed.stringPropertyNames().forEach(name -> properties.setProperty(name, parsed.getProperty(name)));
    properties.computeIfPresent("targetServerType", (name, type) -> SERVER_TYPES.getOrDefault(type, (String) type));
    return properties;
  }

  /** The URL of pgJDBC for a URI of libpq. */
  private static String translate(Matcher uri) {
    StringBuilder url = new StringBuilder("jdbc:postgresql://" + uri.group(3) + "/");
    append(url, "", uri.group(4));
    append(url.append('?'), "user=", uri.group(1));
    append(url, "&password=", uri.group(2));
    for (String parameter : uri.group(5) == null ? new String[0] : uri.group(5).split("&")) {
      String[] parts = parameter.split("=", 2);
      String name = NAMES.getOrDefault(parts[0], parts[0]);
      if (parts.length < 2 || PGProperty.forName(name) == null) {
        throw new IllegalArgumentException("pgJDBC does not know the parameter \"" + parts[0] + "\" of the URI, or it"
            + " has no value");
      }
      append(url, "&" + name + "=", parts[1]);
    }
    return url.toString().replace("+", "%2B"); // it is itself here
  }

  private static void append(StringBuilder url, String name, String value) {
    if (value != null && !value.isEmpty()) {
      url.append(name).append(value);
    }
  }
}
