/** Notifications of PostgreSQL without missed changes, and live queries, over pgJDBC. */
module org.pgpinpoint {
  requires transitive java.sql;
  requires org.postgresql.jdbc;

  exports org.pgpinpoint;
}
