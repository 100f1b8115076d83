//! The command line of `decode`.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Plan, Workload};
use crate::cli::CommonArgs;
use crate::cli::values::{ascending, positive_seconds};

/// Each of them has a file, twice with that of the other server.
const MAX_TABLES: i64 = 1_000_000;

/// For `all --quick`.
pub const QUICK: &[&str] = &["--tables=1000,5000", "--runs=1"];

/// How long logical decoding takes for DDL, against the number of tables
///
/// A row is inserted into each of N tables, and ALTER TABLE ADD COLUMN done on
/// each. pg_recvlogical receives what test_decoding makes of that. The time for
/// the INSERTs alone is measured, too, and subtracted. By default stock
/// PostgreSQL is compared with one that has the library pg_pinpoint_decoding.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of tables to measure with
    #[arg(
        long,
        value_name = "N,N,...",
        value_delimiter = ',',
        default_value = "1000,5000,10000,50000",
        value_parser = clap::value_parser!(u32).range(1..=MAX_TABLES),
    )]
    tables: Vec<u32>,

    /// How the statements are divided into transactions
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "single_transaction,transaction_per_table"
    )]
    workload: Vec<Workload>,

    /// Runs for each number of tables, each workload and each target
    #[arg(long, value_name = "N", default_value = "3")]
    runs: NonZeroU32,

    /// Give up when one decoding takes longer
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = positive_seconds)]
    timeout: Duration,

    #[command(flatten)]
    pub common: CommonArgs,
}

impl Args {
    pub fn plan(&self) -> Plan {
        Plan {
            workloads: ascending(self.workload.clone()),
            tables: ascending(self.tables.clone()),
            runs: self.runs,
            timeout: self.timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Decode {
        #[command(flatten)]
        args: Args,
    }

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        let arguments = ["decode"].iter().chain(arguments);
        Ok(Decode::try_parse_from(arguments)?.args)
    }

    #[test]
    fn defaults() {
        assert_eq!(
            parse(&[]).unwrap().plan(),
            Plan {
                workloads: vec![Workload::SingleTransaction, Workload::TransactionPerTable],
                tables: vec![1000, 5000, 10_000, 50_000],
                runs: NonZeroU32::new(3).unwrap(),
                timeout: Duration::from_secs(3600),
            }
        );
    }

    #[test]
    fn tables_and_workloads_are_sorted_and_made_unique() {
        let plan = parse(&[
            "--tables",
            "100,7,100",
            "--workload",
            "transaction_per_table,single_transaction,transaction_per_table",
        ])
        .unwrap()
        .plan();
        assert_eq!(plan.tables, [7, 100]);
        assert_eq!(
            plan.workloads,
            [Workload::SingleTransaction, Workload::TransactionPerTable]
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for arguments in [
            &["--tables", "0"][..],
            &["--tables", ""],
            &["--tables", "1,,2"],
            &["--tables", "1000001"],
            &["--workload", "both"],
            &["--runs", "0"],
            &["--timeout", "0"],
        ] {
            assert!(parse(arguments).is_err(), "accepted {arguments:?}");
        }
    }
}
