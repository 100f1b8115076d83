//! The transactions, with their notification and without it.
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

/// What the channel of all notifications is called, on a server of its own.
pub const CHANNEL: &str = "pinpoint_bench";

/// In the row and in the notification of each transaction of the load.
const PAYLOAD: &str = "0123456789abcdef0123456789abcdef";

/// In the rows of the probe, where those of the load have the number of their session.
pub const PROBER: &str = "-1";

/// What the payloads of the probe begin with, before their number.
const PROBE: &str = "probe ";

/// The payload that comes after all others.
const FENCE: &str = "fence";

/// How a transaction notifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// By the statement NOTIFY
    Statement,
    /// By SELECT pg_notify(...)
    Function,
    /// By a trigger on the table, in PL/pgSQL
    Trigger,
    /// By the statement NOTIFY alone: nothing is written
    Alone,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Statement => "by the statement NOTIFY",
            Self::Function => "by the function pg_notify()",
            Self::Trigger => "by a trigger",
            Self::Alone => "by the statement NOTIFY, and nothing else",
        })
    }
}

/// With or without the notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Notify,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Notify => "notify",
        })
    }
}

/// What a notification is part of, by its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Load,
    /// The probe of this number, from 0.
    Probe(u32),
    Fence,
}

impl Origin {
    pub fn of(payload: &str) -> Self {
        match payload.strip_prefix(PROBE).map(str::parse) {
            Some(Ok(number)) => Self::Probe(number),
            _ if payload == FENCE => Self::Fence,
            _ => Self::Load,
        }
    }
}

impl Form {
    /// What is measured, in the order of an odd run.
    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Alone => &[Kind::Notify],
            _ => &[Kind::Plain, Kind::Notify],
        }
    }

    /// What the sessions that make the load are called.
    pub fn clients_name(self) -> &'static str {
        match self {
            Self::Alone => "senders",
            _ => "writers",
        }
    }

    /// What to execute once in each cluster.
    pub fn set_up(self) -> Vec<String> {
        if self == Self::Alone {
            return Vec::new();
        }
        // No sequence and no index: the less a transaction does, the more a
        // notification weighs.
        let mut statements = vec!["CREATE TABLE written (client int, payload text)".to_owned()];
        if self == Self::Trigger {
            // Replaced before each load.
            statements.push(trigger_function(Kind::Plain, CHANNEL));
            statements.push(
                "CREATE TRIGGER tell AFTER INSERT ON written \
                 FOR EACH ROW EXECUTE FUNCTION tell()"
                    .to_owned(),
            );
        }
        statements
    }

    /// What to execute before each load, so that all of them begin alike.
    pub fn prepare(self, kind: Kind, channel: &str) -> Vec<String> {
        if self == Self::Alone {
            return Vec::new();
        }
        let mut statements = vec!["TRUNCATE written".to_owned()];
        if self == Self::Trigger {
            statements.push(trigger_function(kind, channel));
        }
        statements
    }

    /// The transaction of the load, as a script of pgbench.
    pub fn script(self, kind: Kind, channel: &str) -> String {
        match self {
            Self::Alone => format!("NOTIFY {channel};\n"),
            _ => {
                self.statements(kind, channel, ":client_id", PAYLOAD)
                    .join("\n")
                    + "\n"
            }
        }
    }

    /// The transaction of the probe.
    pub fn probe(self, kind: Kind, channel: &str, number: u32) -> String {
        self.statements(kind, channel, PROBER, &probe_payload(number))
            .join(" ")
    }

    fn statements(self, kind: Kind, channel: &str, client: &str, payload: &str) -> Vec<String> {
        let notification = self.notification(kind, channel, payload);
        if self == Self::Alone {
            return notification.into_iter().collect();
        }
        let insert = format!("INSERT INTO written VALUES ({client}, '{payload}');");
        let mut statements = vec!["BEGIN;".to_owned(), insert];
        statements.extend(notification);
        statements.push("COMMIT;".to_owned());
        statements
    }

    /// The statement that notifies, or the one in its place. `None` if the trigger
    /// does it.
    fn notification(self, kind: Kind, channel: &str, payload: &str) -> Option<String> {
        let (notify, nothing) = match self {
            Self::Statement | Self::Alone => (
                format!("NOTIFY {channel}, '{payload}';"),
                "DISCARD SEQUENCES",
            ),
            Self::Function => (
                format!("SELECT pg_notify('{channel}', '{payload}');"),
                "SELECT setseed(0)",
            ),
            Self::Trigger => return None,
        };
        Some(match kind {
            Kind::Notify => notify,
            Kind::Plain => padded(nothing, notify.len()),
        })
    }
}

/// In the row and in the notification of a probe.
pub fn probe_payload(number: u32) -> String {
    format!("{PROBE}{number}")
}

/// What marks the end of a load to the listeners, all of them: on a channel that is
/// not shared.
pub fn fence(channel: &str) -> String {
    format!("NOTIFY {channel}_{FENCE}, '{FENCE}'")
}

/// What a listener executes.
pub fn listen(channel: &str) -> String {
    format!("LISTEN {channel}; LISTEN {channel}_{FENCE}")
}

/// A statement with its semicolon, made `length` bytes long by a comment.
fn padded(statement: &str, length: usize) -> String {
    let filling = length.saturating_sub(statement.len() + " /**/;".len());
    format!("{statement} /*{}*/;", "-".repeat(filling))
}

/// The payload comes from the row, so that the trigger notifies for the probe,
/// too.
fn trigger_function(kind: Kind, channel: &str) -> String {
    let call = match kind {
        Kind::Notify => format!("pg_notify('{channel}', NEW.payload)"),
        Kind::Plain => "setseed(0)".to_owned(),
    };
    format!(
        "CREATE OR REPLACE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM {call}; RETURN NULL; END $$"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: [Form; 3] = [Form::Statement, Form::Function, Form::Trigger];

    #[test]
    fn scripts() {
        let script = |form: Form, kind| form.script(kind, CHANNEL);
        let insert = "INSERT INTO written VALUES (:client_id, '0123456789abcdef0123456789abcdef');";
        assert_eq!(
            script(Form::Statement, Kind::Notify),
            format!(
                "BEGIN;\n{insert}\n\
                 NOTIFY pinpoint_bench, '0123456789abcdef0123456789abcdef';\nCOMMIT;\n"
            )
        );
        assert_eq!(
            script(Form::Statement, Kind::Plain),
            format!(
                "BEGIN;\n{insert}\n\
                 DISCARD SEQUENCES /*-----------------------------------*/;\nCOMMIT;\n"
            )
        );
        assert_eq!(
            script(Form::Function, Kind::Notify),
            format!(
                "BEGIN;\n{insert}\nSELECT pg_notify('pinpoint_bench', \
                 '0123456789abcdef0123456789abcdef');\nCOMMIT;\n"
            )
        );
        assert_eq!(
            script(Form::Trigger, Kind::Notify),
            format!("BEGIN;\n{insert}\nCOMMIT;\n")
        );
        assert_eq!(
            Form::Alone.script(Kind::Notify, CHANNEL),
            "NOTIFY pinpoint_bench;\n"
        );
    }

    #[test]
    fn what_is_compared_is_equally_long() {
        for form in FORMS {
            let [plain, notify] =
                [Kind::Plain, Kind::Notify].map(|kind| form.script(kind, CHANNEL));
            assert_eq!(plain.len(), notify.len(), "{plain}\n{notify}");
            // The shortest payload there is.
            let [plain, notify] =
                [Kind::Plain, Kind::Notify].map(|kind| form.probe(kind, CHANNEL, 0));
            assert_eq!(plain.len(), notify.len(), "{plain}\n{notify}");
        }
    }

    #[test]
    fn only_the_trigger_is_replaced() {
        let replaces = |form: Form| {
            form.prepare(Kind::Notify, CHANNEL)
                .contains(&trigger_function(Kind::Notify, CHANNEL))
        };
        assert_eq!(FORMS.map(replaces), [false, false, true]);
    }

    #[test]
    fn payloads_tell_where_they_are_from() {
        assert_eq!(Origin::of("probe 0"), Origin::Probe(0));
        assert_eq!(Origin::of("probe 1234567"), Origin::Probe(1_234_567));
        assert_eq!(Origin::of("fence"), Origin::Fence);
        for payload in ["", PAYLOAD, "probe", "probe ", "probe x", "fence 1"] {
            assert_eq!(Origin::of(payload), Origin::Load, "{payload}");
        }
    }
}
