//! The transactions of a load, with their notification and without it.
//!
//! What stands in for the notification has to be as long, parsed and executed
//! in the same way, and must do nothing, neither in PostgreSQL nor in an
//! extension that watches notifications. It is `DISCARD SEQUENCES`, a utility
//! statement like NOTIFY. It forgets the sequences that the session has used, and
//! there are none. UNLISTEN would be no good: pg_pinpoint looks at it, too, and
//! NOTIFY would be compared with something slower than nothing.

use crate::workload::transaction::{Statement, Transaction};

/// Stands for `{channel}` on a server of its own.
pub const CHANNEL: &str = "pinpoint_bench";

/// What listeners on it execute.
pub const LISTEN: &str = "LISTEN {channel}";

pub const NOTIFY_TPS: &str = "notify_tps";
pub const PLAIN_TPS: &str = "plain_tps";

/// What transactions that write insert into. No sequence and no index: the less a transaction
/// does, the more a notification weighs.
pub const TABLE: &str = "CREATE TABLE written (client int, payload text)";
const TRUNCATE: &str = "TRUNCATE written";
const INSERT: &str = "INSERT INTO written VALUES ({client}, '{payload}');";

/// A transaction that inserts a row, without a notification.
pub fn plain() -> Transaction {
    let statement = Statement::AsLongAs("DISCARD SEQUENCES", notification("{channel}"));
    Transaction {
        name: "plain",
        rate: PLAIN_TPS,
        prepare: vec![TRUNCATE.to_owned()],
        script: writing(statement.clone()),
        probe: writing(statement),
        notifies: false,
    }
}

/// The same with its notification. That of the probe is sent on `probe_channel`.
pub fn notifying(probe_channel: &str) -> Transaction {
    let writing = |channel| writing(Statement::Plain(notification(channel)));
    Transaction {
        name: "notify",
        rate: NOTIFY_TPS,
        prepare: vec![TRUNCATE.to_owned()],
        script: writing("{channel}"),
        probe: writing(probe_channel),
        notifies: true,
    }
}

fn notification(channel: &str) -> String {
    format!("NOTIFY {channel}, '{{payload}}';")
}

/// NOTIFY and nothing else.
pub fn notification_alone() -> Transaction {
    let statement = |text: &str| vec![Statement::Plain(text.to_owned())];
    Transaction {
        name: "notify",
        rate: NOTIFY_TPS,
        prepare: Vec::new(),
        script: statement("NOTIFY {channel};"),
        probe: statement("NOTIFY {channel}, '{payload}';"),
        notifies: true,
    }
}

/// A transaction that inserts a row, and then does this.
fn writing(statement: Statement) -> Vec<Statement> {
    let plain = |text: &str| Statement::Plain(text.to_owned());
    vec![plain("BEGIN;"), plain(INSERT), statement, plain("COMMIT;")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::transaction::render;

    fn script(transaction: &Transaction) -> String {
        render(&transaction.script, CHANNEL, ":client_id", "0123").join("\n")
    }

    #[test]
    fn scripts() {
        let insert = "INSERT INTO written VALUES (:client_id, '0123');";
        for (transaction, middle) in [
            (notifying("{channel}"), "NOTIFY pinpoint_bench, '0123';\n"),
            (plain(), "DISCARD SEQUENCES /*-------*/;\n"),
        ] {
            let expected = format!("BEGIN;\n{insert}\n{middle}COMMIT;");
            assert_eq!(script(&transaction), expected);
        }
        assert_eq!(script(&notification_alone()), "NOTIFY pinpoint_bench;");
    }

    #[test]
    fn what_is_compared_is_equally_long() {
        let (plain, notify) = (plain(), notifying("{channel}"));
        assert_eq!(script(&plain).len(), script(&notify).len());
        // The shortest payload there is.
        let [plain, notify] = [plain, notify]
            .map(|transaction| render(&transaction.probe, CHANNEL, "-1", "probe 0").concat());
        assert_eq!(plain.len(), notify.len(), "{plain}\n{notify}");
    }
}
