//! A unit of work as SQL: the messages that go to the server one by one.

use std::fmt::Write;
use std::ops::Range;

use crate::sessions::schema::{
    AWAIT_NEWCOMER, BREAK_CONSTRAINT, CONSTRAINT_BROKEN, DEFERRED_CONSTRAINT_BROKEN, READ_ACCOUNTS,
    SEE_NEWCOMERS, break_deferred_constraint, insert_and_notify,
};
use crate::workload::identity::{TransactionId, payload};
use crate::workload::unit_of_work::{
    End, Form, Greeting, Notification, SavepointEnd, Series, Statement, Step, Transaction, Unit,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub sql: String,
    /// The SQLSTATE with which it must fail.
    pub failure: Option<&'static str>,
    /// Transactions of the unit that are over when this is, as planned.
    pub ends: Range<usize>,
}

impl Message {
    fn new(sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            failure: None,
            ends: 0..0,
        }
    }

    fn fails(mut self, sqlstate: &'static str) -> Self {
        self.failure = Some(sqlstate);
        self
    }

    fn ends(mut self, transactions: Range<usize>) -> Self {
        self.ends = transactions;
        self
    }
}

pub fn messages(unit: &Unit) -> Vec<Message> {
    match unit.form {
        Form::Statements => statements(unit),
        Form::OneMessage => {
            let messages = statements(unit);
            let sql: Vec<String> = messages.into_iter().map(|message| message.sql).collect();
            vec![Message::new(sql.join("; ")).ends(0..1)]
        }
        Form::Implicit => {
            let mut sql = vec![format!(
                "SET LOCAL synchronous_commit = {}",
                unit.synchronous_commit
            )];
            sql.extend(body(&unit.transactions[0]).into_iter().map(|m| m.sql));
            vec![Message::new(sql.join("; ")).ends(0..1)]
        }
        Form::Chained => chained(unit),
        Form::Procedure => vec![set_for_session(unit), procedure(unit)],
    }
}

fn statements(unit: &Unit) -> Vec<Message> {
    let transaction = &unit.transactions[0];
    let isolation = if unit.is_serializable {
        " ISOLATION LEVEL SERIALIZABLE"
    } else {
        ""
    };
    let mut messages = vec![
        Message::new(format!("BEGIN{isolation}")),
        Message::new(format!(
            "SET LOCAL synchronous_commit = {}",
            unit.synchronous_commit
        )),
    ];
    if unit.is_serializable {
        messages.push(Message::new(READ_ACCOUNTS));
    }
    if unit.greeting == Some(Greeting::WithLock) {
        messages.push(Message::new(AWAIT_NEWCOMER));
    }
    if unit.greeting.is_some() {
        messages.push(Message::new(SEE_NEWCOMERS));
    }
    messages.extend(body(transaction));
    if unit.is_serializable {
        messages.push(Message::new(format!(
            "UPDATE account SET value = value + 1 WHERE writer = {}",
            transaction.id.writer
        )));
    }
    match transaction.end {
        End::Commit => messages.push(Message::new("COMMIT").ends(0..1)),
        End::Rollback => messages.push(Message::new("ROLLBACK").ends(0..1)),
        End::ConstraintError => {
            messages.push(Message::new(BREAK_CONSTRAINT).fails(CONSTRAINT_BROKEN));
            messages.push(Message::new("ROLLBACK").ends(0..1));
        }
        End::DeferredConstraintError => {
            messages.push(Message::new(break_deferred_constraint(
                transaction.id.writer,
            )));
            messages.push(
                Message::new("COMMIT")
                    .fails(DEFERRED_CONSTRAINT_BROKEN)
                    .ends(0..1),
            );
        }
    }
    messages
}

fn chained(unit: &Unit) -> Vec<Message> {
    let mut messages = vec![set_for_session(unit), Message::new("BEGIN")];
    for (number, transaction) in unit.transactions.iter().enumerate() {
        messages.extend(body(transaction));
        let is_last = number + 1 == unit.transactions.len();
        let verb = match transaction.end {
            End::Commit => "COMMIT",
            _ => "ROLLBACK",
        };
        let chain = if is_last { "" } else { " AND CHAIN" };
        messages.push(Message::new(format!("{verb}{chain}")).ends(number..number + 1));
    }
    messages
}

fn procedure(unit: &Unit) -> Message {
    let mut lines = Vec::new();
    for transaction in &unit.transactions {
        let notifications = transaction.notifications();
        let last = notifications.last().map(|notification| notification.index);
        for Notification {
            index,
            channel,
            length,
        } in notifications
        {
            let what_follows = match transaction.end {
                _ if Some(index) != last => 0,
                End::Commit => 1,
                _ => 2,
            };
            let number = transaction.id.number;
            lines.push(format!(
                "{{{number},{index},{},{length},{what_follows}}}",
                channel.0
            ));
        }
    }
    Message::new(format!(
        "CALL several_transactions({}, '{{{}}}')",
        unit.transactions[0].id.writer,
        lines.join(",")
    ))
    .ends(0..unit.transactions.len())
}

/// For what cannot do with SET LOCAL. Units before and after set their own.
fn set_for_session(unit: &Unit) -> Message {
    Message::new(format!(
        "SET synchronous_commit = {}",
        unit.synchronous_commit
    ))
}

/// What a transaction does between BEGIN and its end.
fn body(transaction: &Transaction) -> Vec<Message> {
    let mut messages = Vec::new();
    if transaction.takes_xid {
        let TransactionId { writer, number } = transaction.id;
        let sql = if number % 2 == 0 {
            "SELECT pg_current_xact_id()".to_owned()
        } else {
            // Then nothing that has an XID is left of it, either.
            format!(
                "SAVEPOINT nothing; INSERT INTO event VALUES ({writer}, {number}, 0, 0, 0); \
                 ROLLBACK TO nothing"
            )
        };
        messages.push(Message::new(sql));
    }
    let mut savepoints = 0;
    steps(
        transaction,
        &transaction.steps,
        &mut savepoints,
        &mut messages,
    );
    messages
}

fn steps(
    transaction: &Transaction,
    steps_to_do: &[Step],
    savepoints: &mut u32,
    messages: &mut Vec<Message>,
) {
    for step in steps_to_do {
        match step {
            Step::Notify {
                notification,
                statement,
                is_repeated,
            } => messages.push(notify(transaction, notification, *statement, *is_repeated)),
            Step::Series(series) => messages.push(insert_series(transaction, *series)),
            Step::Savepoint {
                steps: inner_steps,
                end,
            } => {
                *savepoints += 1;
                let name = format!("s{savepoints}");
                messages.push(Message::new(format!("SAVEPOINT {name}")));
                steps(transaction, inner_steps, savepoints, messages);
                match end {
                    SavepointEnd::Release => {
                        messages.push(Message::new(format!("RELEASE {name}")));
                    }
                    SavepointEnd::Leave => {}
                    SavepointEnd::RollBack => {
                        messages.push(Message::new(format!("ROLLBACK TO {name}")));
                    }
                    SavepointEnd::RollBackAfterError => {
                        messages.push(Message::new(BREAK_CONSTRAINT).fails(CONSTRAINT_BROKEN));
                        messages.push(Message::new(format!("ROLLBACK TO {name}")));
                    }
                }
            }
        }
    }
}

fn notify(
    transaction: &Transaction,
    notification: &Notification,
    statement: Statement,
    is_repeated: bool,
) -> Message {
    let TransactionId { writer, number } = transaction.id;
    let Notification {
        index,
        channel,
        length,
    } = *notification;
    let values = format!("{writer}, {number}, {index}, {}, {length}", channel.0);
    let payload = payload(transaction.key(index), length);
    let by_statement = format!("NOTIFY {channel}, '{payload}'");
    let by_function = format!("SELECT pg_notify('{channel}', '{payload}')");

    let mut sql = match statement {
        Statement::Notify if !transaction.has_rows => by_statement.clone(),
        _ if !transaction.has_rows => by_function,
        Statement::Notify => format!("INSERT INTO event VALUES ({values}); {by_statement}"),
        Statement::Function => format!("INSERT INTO event VALUES ({values}); {by_function}"),
        Statement::Returning => insert_and_notify(&values),
        Statement::Trigger => format!("INSERT INTO event VALUES ({values}, 'i')"),
        Statement::DeferredTrigger => format!("INSERT INTO event VALUES ({values}, 'd')"),
    };
    if is_repeated {
        write!(sql, "; {by_statement}").expect("a string takes everything");
    }
    Message::new(sql)
}

fn insert_series(transaction: &Transaction, series: Series) -> Message {
    let TransactionId { writer, number } = transaction.id;
    let Series {
        first_index,
        count,
        channels,
        length,
    } = series;
    let last_index = first_index + count - 1;
    Message::new(format!(
        "INSERT INTO event SELECT {writer}, {number}, i, i % {channels}, {length}, 'i' \
         FROM generate_series({first_index}, {last_index}) AS i"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    fn units() -> impl Iterator<Item = Unit> {
        let workload = Workload {
            seed: 7,
            channels: 8,
        };
        (0..5000).map(move |number| workload.unit(0, number))
    }

    #[test]
    fn every_transaction_ends_once_and_in_order() {
        for unit in units() {
            let ended: Vec<usize> = messages(&unit)
                .into_iter()
                .flat_map(|message| message.ends)
                .collect();
            let all: Vec<usize> = (0..unit.transactions.len()).collect();
            assert_eq!(ended, all, "{unit:?}");
        }
    }

    #[test]
    fn what_is_one_message_cannot_fail_half_way() {
        for unit in units() {
            if matches!(unit.form, Form::OneMessage | Form::Implicit) {
                let [message] = &messages(&unit)[..] else {
                    panic!("{unit:?}");
                };
                assert_eq!(message.failure, None);
                assert!(!message.sql.contains(BREAK_CONSTRAINT));
            }
        }
    }

    #[test]
    fn rows_go_with_the_notifications_that_are_said_to_have_one() {
        for unit in units() {
            for transaction in &unit.transactions {
                let inserts = body(transaction)
                    .iter()
                    .filter(|message| {
                        message.sql.starts_with("INSERT INTO event")
                            || message.sql.starts_with("WITH inserted")
                    })
                    .count();
                assert_eq!(transaction.has_rows, inserts > 0, "{transaction:?}");
            }
        }
    }
}
