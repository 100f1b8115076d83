//! The transactions of a load, with their notification and without it.
//!
//! What stands in for the notification has to be as long, parsed and executed
//! in the same way, and must do nothing, neither in PostgreSQL nor in an
//! extension that watches notifications:
//!
//! - For NOTIFY it is `DISCARD SEQUENCES`, a utility statement as well. It
//!   forgets the sequences that the session has used, and there are none.
//!   UNLISTEN would be no good: pg_pinpoint looks at it, too, and NOTIFY would be
//!   compared with something slower than nothing.
//! - For `pg_notify()` it is `setseed()`, a function that is written in C,
//!   volatile (so that it is called and not replaced by its result) and returns
//!   void as well. It stores a number in the session's memory.

use std::fmt;

use serde::Serialize;

use crate::workload::transaction::{Statement, Transaction};

/// Stands for `{channel}` on a server of its own.
pub const CHANNEL: &str = "pinpoint_bench";

/// What listeners on it execute.
pub const LISTEN: &str = "LISTEN {channel}";

pub const NOTIFY_TPS: &str = "notify_tps";
pub const PLAIN_TPS: &str = "plain_tps";

/// No sequence and no index: the less a transaction does, the more a notification weighs.
const TABLE: &str = "CREATE TABLE written (client int, payload text)";
const TRUNCATE: &str = "TRUNCATE written";
const INSERT: &str = "INSERT INTO written VALUES ({client}, '{payload}');";
const TRIGGER: &str = "CREATE TRIGGER tell AFTER INSERT ON written \
                       FOR EACH ROW EXECUTE FUNCTION tell()";

/// How a transaction that writes notifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// With the statement NOTIFY
    Statement,
    /// With SELECT pg_notify(...)
    Function,
    /// With a PL/pgSQL trigger on the table
    Trigger,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Statement => "by the statement NOTIFY",
            Self::Function => "by the function pg_notify()",
            Self::Trigger => "by a trigger",
        })
    }
}

impl Form {
    /// What to execute once on each server.
    pub fn set_up(self) -> Vec<String> {
        let mut statements = vec![TABLE.to_owned()];
        if self == Self::Trigger {
            // The function is replaced before each load.
            statements.extend([trigger_function(NOTHING), TRIGGER.to_owned()]);
        }
        statements
    }

    /// The transaction without its notification.
    pub fn plain(self) -> Transaction {
        let instead = match self {
            Self::Statement => Some("DISCARD SEQUENCES"),
            Self::Function => Some("SELECT setseed(0)"),
            Self::Trigger => None,
        };
        let notification = self.notification("{channel}").zip(instead);
        let statement = notification.map(|(notify, instead)| Statement::AsLongAs(instead, notify));
        Transaction {
            name: "plain",
            rate: PLAIN_TPS,
            prepare: self.prepare(NOTHING),
            script: writing(statement.clone()),
            probe: writing(statement),
            notifies: false,
        }
    }

    /// The transaction with its notification. That of the probe is sent on `probe_channel`.
    pub fn notifying(self, probe_channel: &str) -> Transaction {
        let notification = |channel| self.notification(channel).map(Statement::Plain);
        Transaction {
            name: "notify",
            rate: NOTIFY_TPS,
            prepare: self.prepare("pg_notify('{channel}', NEW.payload)"),
            script: writing(notification("{channel}")),
            probe: writing(notification(probe_channel)),
            notifies: true,
        }
    }

    /// The statement that notifies. `None` if the trigger does it.
    fn notification(self, channel: &str) -> Option<String> {
        match self {
            Self::Statement => Some(format!("NOTIFY {channel}, '{{payload}}';")),
            Self::Function => Some(format!("SELECT pg_notify('{channel}', '{{payload}}');")),
            Self::Trigger => None,
        }
    }

    /// What to execute before each load, so that all of them begin alike.
    fn prepare(self, call: &str) -> Vec<String> {
        let mut statements = vec![TRUNCATE.to_owned()];
        if self == Self::Trigger {
            statements.push(trigger_function(call));
        }
        statements
    }
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

/// A transaction that inserts a row.
fn writing(notification: Option<Statement>) -> Vec<Statement> {
    let plain = |text: &str| Statement::Plain(text.to_owned());
    let mut statements = vec![plain("BEGIN;"), plain(INSERT)];
    statements.extend(notification);
    statements.push(plain("COMMIT;"));
    statements
}

/// Called by the trigger in the place of a notification.
const NOTHING: &str = "setseed(0)";

/// The payload comes from the row, so that the trigger notifies for the probe, too.
fn trigger_function(call: &str) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM {call}; RETURN NULL; END $$"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::transaction::render;

    const FORMS: [Form; 3] = [Form::Statement, Form::Function, Form::Trigger];

    fn script(transaction: &Transaction) -> String {
        render(&transaction.script, CHANNEL, ":client_id", "0123").join("\n")
    }

    #[test]
    fn scripts() {
        let insert = "INSERT INTO written VALUES (:client_id, '0123');";
        for (transaction, middle) in [
            (
                Form::Statement.notifying("{channel}"),
                "NOTIFY pinpoint_bench, '0123';\n",
            ),
            (Form::Statement.plain(), "DISCARD SEQUENCES /*-------*/;\n"),
            (
                Form::Function.notifying("{channel}"),
                "SELECT pg_notify('pinpoint_bench', '0123');\n",
            ),
            (Form::Trigger.notifying("{channel}"), ""),
        ] {
            let expected = format!("BEGIN;\n{insert}\n{middle}COMMIT;");
            assert_eq!(script(&transaction), expected);
        }
        assert_eq!(script(&notification_alone()), "NOTIFY pinpoint_bench;");
    }

    #[test]
    fn what_is_compared_is_equally_long() {
        for form in FORMS {
            let (plain, notify) = (form.plain(), form.notifying("{channel}"));
            assert_eq!(script(&plain).len(), script(&notify).len(), "{form}");
            // The shortest payload there is.
            let [plain, notify] = [plain, notify]
                .map(|transaction| render(&transaction.probe, CHANNEL, "-1", "probe 0").concat());
            assert_eq!(plain.len(), notify.len(), "{plain}\n{notify}");
        }
    }

    #[test]
    fn only_the_trigger_is_replaced() {
        let replaces = |form: Form| form.notifying("{channel}").prepare.len() > 1;
        assert_eq!(FORMS.map(replaces), [false, false, true]);
    }
}
