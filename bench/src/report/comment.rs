//! The comments of a page that name figures.

pub const OPEN: &str = "<!-- ";
pub const CLOSE: &str = "-->";

/// What a comment asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Figure,
    Table,
    Chart,
    /// The result of the check of the method.
    Check,
    /// How many intervals of two records overlap.
    Repeated,
}

/// What a comment says, and how sure its intervals are.
#[derive(Debug, Clone, Copy)]
pub struct Comment<'a> {
    pub kind: Kind,
    pub is_headline: bool,
    /// A line for each source.
    pub text: &'a str,
}

impl<'a> Comment<'a> {
    /// `None` if it is for those who read the source of the page.
    pub fn parse(content: &'a str) -> Option<Self> {
        let content = content.trim();
        let (name, text) = content
            .split_once(char::is_whitespace)
            .unwrap_or((content, ""));
        let (kind, is_headline) = match name {
            "figure" => (Kind::Figure, false),
            "table" => (Kind::Table, false),
            "headline" => (Kind::Figure, true),
            "headlines" => (Kind::Table, true),
            "chart" => (Kind::Chart, false),
            "check" => (Kind::Check, false),
            "repeated" => (Kind::Repeated, false),
            _ => return None,
        };
        Some(Self {
            kind,
            is_headline,
            text,
        })
    }

    /// The label of a line, and its source.
    pub fn lines(self) -> impl Iterator<Item = (Option<&'a str>, &'a str)> {
        let lines = self.text.lines().map(move |line| match self.kind {
            Kind::Table => match line.rsplit_once(" = ") {
                Some((label, source)) => (Some(label), source),
                None => (None, line),
            },
            Kind::Figure | Kind::Chart | Kind::Check | Kind::Repeated => (None, line),
        });
        lines.filter(|(_, source)| !source.trim().is_empty())
    }
}

/// All sources of the figures and tables of a page.
pub fn sources(page: &str) -> impl Iterator<Item = &str> {
    let contents = page.split(OPEN).skip(1);
    let comments = contents.filter_map(|rest| Comment::parse(rest.split_once(CLOSE)?.0));
    let comments = comments.filter(|comment| matches!(comment.kind, Kind::Figure | Kind::Table));
    comments.flat_map(|comment| comment.lines().map(|(_, source)| source))
}
