//! Numbers as people read them: with thousands set apart, and without decimals
//! that say nothing.

use indicatif::HumanCount;

use super::results::{Figure, Kind};

/// A value of a figure.
pub fn of_figure(figure: &Figure, value: f64) -> String {
    match figure.kind {
        Kind::Share => ratio(value),
        _ => significant(value),
    }
}

/// Without decimals beyond the third significant digit.
pub fn significant(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.0 => 0,
        // As many zeros after the point as there are, and three digits.
        small => (2 - small.log10().floor() as i32).clamp(3, 9) as usize,
    };
    grouped(format!("{value:.digits$}"))
}

/// A share or a multiple.
pub fn ratio(ratio: f64) -> String {
    let digits = match ratio.abs() {
        100.0.. => 0,
        10.0.. => 1,
        0.1.. => 2,
        _ => return significant(ratio),
    };
    grouped(format!("{ratio:.digits$}"))
}

/// A limit of the interval of a ratio. One that is not 1 does not look like 1, since a reader sees on
/// which side of 1 the interval lies.
pub fn limit(limit: f64) -> String {
    let distance = (limit - 1.0).abs();
    if !(1e-9..0.005).contains(&distance) {
        return ratio(limit);
    }
    let digits = (-distance.log10()).ceil().clamp(3.0, 9.0) as usize;
    format!("{limit:.digits$}")
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
    fn three_digits_are_enough() {
        let values = [0.0, 0.001234, 0.5, 1.0, 17.24, 999.6, 5576.4, 1_234_567.8];
        assert_eq!(
            values.map(significant),
            [
                "0",
                "0.00123",
                "0.500",
                "1.00",
                "17.2",
                "1,000",
                "5,576",
                "1,234,568"
            ]
        );
        let ratios = [0.0049, 0.9549, 12.34, 323.5, 1234.5].map(ratio);
        assert_eq!(ratios, ["0.00490", "0.95", "12.3", "324", "1,234"]);
        let limits = [0.9549, 0.9962, 0.99996, 1.0 + f64::EPSILON, 1.0028, 1.0051].map(limit);
        assert_eq!(
            limits,
            ["0.95", "0.996", "0.99996", "1.00", "1.003", "1.01"]
        );
        assert_eq!((whole(1000.0), whole(-3.0)), ("1,000".into(), "-3".into()));
    }
}
