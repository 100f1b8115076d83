//! What is written for logical decoding.

use clap::ValueEnum;
use serde::Serialize;

const CREATE: &str = "CREATE TABLE t%s (id int)";
const INSERT: &str = "INSERT INTO t%s VALUES (1)";
const ALTER: &str = "ALTER TABLE t%s ADD COLUMN added int";

/// How the statements are divided into transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// All statements in one transaction
    #[value(name = "single_transaction")]
    SingleTransaction,
    /// One transaction per statement
    #[value(name = "transaction_per_table")]
    TransactionPerTable,
}

impl Grouping {
    /// Of the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleTransaction => "single_transaction",
            Self::TransactionPerTable => "transaction_per_table",
        }
    }

    /// SQL that makes the tables.
    pub fn create_tables(tables: u64) -> String {
        block(&for_each(CREATE, tables, true))
    }

    /// SQL that inserts a row into each table.
    pub fn dml(self, tables: u64) -> String {
        block(&for_each(INSERT, tables, self.commits_each()))
    }

    /// The same, and then alters each table.
    pub fn dml_and_ddl(self, tables: u64) -> String {
        let commit = self.commits_each();
        block(&(for_each(INSERT, tables, commit) + &for_each(ALTER, tables, commit)))
    }

    fn commits_each(self) -> bool {
        self == Self::TransactionPerTable
    }
}

/// PL/pgSQL that executes a statement for each table: to send fifty thousand
/// statements would take longer.
fn for_each(statement: &str, tables: u64, commit: bool) -> String {
    let commit = if commit { " COMMIT;" } else { "" };
    format!("FOR i IN 1..{tables} LOOP EXECUTE format('{statement}', i);{commit} END LOOP; ")
}

fn block(statements: &str) -> String {
    format!("DO $$ BEGIN {statements}END $$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_transaction_has_no_commit() {
        assert_eq!(
            Grouping::SingleTransaction.dml_and_ddl(3),
            "DO $$ BEGIN \
             FOR i IN 1..3 LOOP EXECUTE format('INSERT INTO t%s VALUES (1)', i); END LOOP; \
             FOR i IN 1..3 LOOP EXECUTE format('ALTER TABLE t%s ADD COLUMN added int', i); \
             END LOOP; END $$"
        );
    }

    #[test]
    fn a_transaction_per_table_commits_after_each() {
        assert_eq!(
            Grouping::TransactionPerTable.dml(3),
            "DO $$ BEGIN \
             FOR i IN 1..3 LOOP EXECUTE format('INSERT INTO t%s VALUES (1)', i); COMMIT; \
             END LOOP; END $$"
        );
    }
}
