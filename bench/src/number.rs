//! Numbers as people read them on a page: with thousands set apart.

use indicatif::HumanCount;

use crate::results::{Figure, three_digits};

/// A value of a figure.
pub fn of_figure(figure: &Figure, value: f64) -> String {
    grouped(figure.format(value))
}

/// Without decimals beyond the third significant digit.
pub fn significant(value: f64) -> String {
    grouped(three_digits(value))
}

/// Rounded to an integer.
pub fn whole(value: f64) -> String {
    grouped(format!("{value:.0}"))
}

fn grouped(text: String) -> String {
    match text.parse() {
        Ok(count) => HumanCount(count).to_string(),
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let texts = [0.0, 17.24, 999.6, 5576.4, 1_234_567.8].map(significant);
        assert_eq!(texts, ["0", "17.2", "1,000", "5,576", "1,234,568"]);
        assert_eq!(whole(1000.0), "1,000");
        assert_eq!(whole(-3.0), "-3");
    }
}
