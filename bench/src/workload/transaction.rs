//! What the sessions of a load repeat, as statements to be filled in.

/// What the sessions of a load repeat.
#[derive(Debug, Clone)]
pub struct Transaction {
    /// For errors.
    pub name: &'static str,
    /// The figure with the transactions per second.
    pub rate: &'static str,
    /// Executed before the load, so that all loads begin alike.
    pub prepare: Vec<String>,
    /// For pgbench.
    pub script: Vec<Statement>,
    /// The same for the probe, if there is one.
    pub probe: Vec<Statement>,
    /// Does each transaction send one notification?
    pub notifies: bool,
}

/// A statement, with `{channel}`, `{client}` and `{payload}` to be filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    Plain(String),
    /// A statement without a semicolon, made as long as another one by a comment.
    AsLongAs(&'static str, String),
}

/// Fills statements in.
pub fn render(statements: &[Statement], channel: &str, client: &str, payload: &str) -> Vec<String> {
    let fill = |text: &str| {
        with_channel(text, channel)
            .replace("{client}", client)
            .replace("{payload}", payload)
    };
    let statements = statements.iter().map(|statement| match statement {
        Statement::Plain(text) => fill(text),
        Statement::AsLongAs(text, other) => padded(text, fill(other).len()),
    });
    statements.collect()
}

pub fn with_channel(text: &str, channel: &str) -> String {
    text.replace("{channel}", channel)
}

/// A statement with its semicolon, made `length` bytes long by a comment.
fn padded(statement: &str, length: usize) -> String {
    let filling = length.saturating_sub(statement.len() + " /**/;".len());
    format!("{statement} /*{}*/;", "-".repeat(filling))
}
