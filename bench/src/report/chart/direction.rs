//! The two directions of a chart: where a value lies, and which values are named.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::report::number_format;
use crate::report::results::Scale;

/// Of the length of a direction, left free at each end of the horizontal one.
const MARGIN: f64 = 0.05;

/// One direction of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Direction {
    scale: Scale,
    /// Where 0 is on a logarithmic scale, which has no place for it: one power of ten
    /// before the least other value.
    zero: f64,
    /// The ends, as places: see [`Direction::place`].
    ends: (f64, f64),
    ticks: Vec<f64>,
}

impl Direction {
    /// From the first to the last of these values, in rising order, which are named.
    fn of_ticks(scale: Scale, ticks: Vec<f64>) -> Self {
        let least = ticks.iter().find(|&&tick| tick > 0.0);
        let mut direction = Self {
            scale,
            zero: least.map_or(0.0, |least| least.log10() - 1.0),
            ends: (0.0, 1.0),
            ticks,
        };
        let [first, .., last] = direction.ticks[..] else {
            return direction;
        };
        direction.ends = (direction.place(first), direction.place(last));
        direction
    }

    /// For values that were chosen: these are named, as many as there is room
    /// for, if each takes `room(label)` of the length of the direction.
    pub fn of_choices(scale: Scale, values: &[f64], room: impl Fn(&str) -> f64) -> Self {
        let mut ticks = values.to_vec();
        ticks.sort_unstable_by(f64::total_cmp);
        ticks.dedup();
        let mut direction = Self::of_ticks(scale, ticks);
        let (low, high) = match direction.ticks[..] {
            [only] => (direction.place(only) - 0.5, direction.place(only) + 0.5),
            _ => direction.ends,
        };
        let margin = (high - low) * MARGIN;
        direction.ends = (low - margin, high + margin);

        // From the end, as the last one matters most.
        let mut free_until = f64::INFINITY;
        for tick in std::mem::take(&mut direction.ticks).into_iter().rev() {
            let middle = direction.fraction(tick);
            let half = room(&number_format::whole(tick)) / 2.0;
            if middle + half <= free_until {
                direction.ticks.insert(0, tick);
                free_until = middle - half;
            }
        }
        direction
    }

    /// For values that were measured: round numbers are named.
    pub fn of_measurements(scale: Scale, values: &[f64]) -> Self {
        let least = values.iter().copied().filter(|&value| value > 0.0);
        match (scale, least.reduce(f64::min)) {
            (Scale::Logarithmic, Some(least)) => Self::logarithmic(least, values),
            _ => Self::linear(values),
        }
    }

    /// From 0 on, so that lengths can be compared.
    fn linear(values: &[f64]) -> Self {
        let high = values.iter().copied().fold(0.0, f64::max);
        let low = values.iter().copied().fold(0.0, f64::min);
        let length = if high > low { high - low } else { 1.0 };
        let step = round_up(length / 5.0);
        let (first, last) = ((low / step).floor(), (low + length).max(high) / step);
        let count = (last.ceil() - first) as i32;
        let ticks = (0..=count).map(|tick| (first + f64::from(tick)) * step);
        Self::of_ticks(Scale::Linear, ticks.collect())
    }

    /// Powers of ten, or if there are few of them also their halves and fifths.
    fn logarithmic(low: f64, values: &[f64]) -> Self {
        let high = values.iter().copied().fold(low, f64::max);
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let between = |factors: &[f64]| {
            let all: Vec<f64> = decades
                .clone()
                .flat_map(|decade| {
                    factors
                        .iter()
                        .map(move |factor| factor * 10_f64.powi(decade))
                })
                .collect();
            // The last one that is not above the values, and the first not below.
            let first = all.iter().rposition(|&tick| tick <= low).unwrap_or(0);
            let last = all.iter().position(|&tick| tick >= high);
            all[first..=last.unwrap_or(all.len() - 1)].to_vec()
        };
        let mut ticks = between(&[1.0]);
        if ticks.len() < 4 {
            ticks = between(&[1.0, 2.0, 5.0]);
        }
        if ticks.len() < 2 {
            ticks.push(ticks[0] * 10.0);
        }
        if values.iter().any(|&value| value <= 0.0) {
            ticks.insert(0, 0.0);
        }
        Self::of_ticks(Scale::Logarithmic, ticks)
    }

    pub fn ticks(&self) -> &[f64] {
        &self.ticks
    }

    /// On a scale that is linear, whatever that of the values is.
    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic if value > 0.0 => value.log10(),
            Scale::Logarithmic => self.zero,
        }
    }

    /// Of the way from one end to the other.
    fn fraction(&self, value: f64) -> f64 {
        let (low, high) = self.ends;
        (self.place(value) - low) / (high - low)
    }
}

/// The next one of 1, 2, 5, 10, 20, ...
fn round_up(value: f64) -> f64 {
    let decade = 10_f64.powi(value.log10().floor() as i32);
    let factors = [1.0, 2.0, 5.0];
    let fitting = factors.into_iter().find(|factor| factor * decade >= value);
    fitting.unwrap_or(10.0) * decade
}

impl Ranged for Direction {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (f64::from(to - from) * self.fraction(*value)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Plotters also asks for lines between those that are named.
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.ticks.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.ticks[0]..self.ticks[self.ticks.len() - 1]
    }
}

impl ValueFormatter<f64> for Direction {
    fn format_ext(&self, value: &f64) -> String {
        label(*value)
    }
}

/// A number beside a direction, without decimals that say nothing.
pub fn label(value: f64) -> String {
    if value.fract() == 0.0 {
        return number_format::whole(value);
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: Scale, values: &[f64]) -> Vec<f64> {
        Direction::of_measurements(scale, values).ticks
    }

    fn no_room(_: &str) -> f64 {
        0.0
    }

    #[test]
    fn measurements_have_round_numbers_around_them() {
        use Scale::{Linear, Logarithmic};
        assert_eq!(
            ticks(Logarithmic, &[16.8, 7069.0]),
            [10.0, 100.0, 1000.0, 10_000.0]
        );
        assert_eq!(
            ticks(Logarithmic, &[17.0, 130.0]),
            [10.0, 20.0, 50.0, 100.0, 200.0]
        );
        assert_eq!(
            ticks(Logarithmic, &[0.003, 0.02]),
            [0.002, 0.005, 0.01, 0.02]
        );
        assert_eq!(ticks(Logarithmic, &[10.0]), [10.0, 100.0]);
        assert_eq!(ticks(Linear, &[0.28, 1.03]), [0.0, 0.5, 1.0, 1.5]);
        assert_eq!(
            ticks(Linear, &[4000.0]),
            [0.0, 1000.0, 2000.0, 3000.0, 4000.0]
        );
        assert_eq!(ticks(Linear, &[-3.0, 1.0]), [-3.0, -2.0, -1.0, 0.0, 1.0]);
    }

    #[test]
    fn nothing_but_zero_has_a_direction_too() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let direction = Direction::of_measurements(scale, &[0.0]);
            assert_eq!(direction.map(&0.0, (100, 0)), 100);
        }
    }

    #[test]
    fn every_value_lies_between_the_ends() {
        for values in [
            &[0.0, 3.0, 70.0][..],
            &[1e-7, 1e9],
            &[5.0],
            &[99.0, 100.0, 101.0],
            &[0.95, 1.02],
        ] {
            for scale in [Scale::Linear, Scale::Logarithmic] {
                let measured = Direction::of_measurements(scale, values);
                let chosen = Direction::of_choices(scale, values, no_room);
                for direction in [measured, chosen] {
                    for value in values {
                        let place = direction.map(value, (0, 1000));
                        assert!((0..=1000).contains(&place), "{value} in {direction:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn zero_is_a_power_of_ten_before_the_least_value() {
        let direction =
            Direction::of_choices(Scale::Logarithmic, &[1000.0, 0.0, 10.0, 100.0], no_room);
        let places = [0.0, 10.0, 100.0, 1000.0].map(|value| direction.map(&value, (0, 110)));
        assert_eq!(places, [5, 38, 72, 105]);
        assert_eq!(direction.ticks(), [0.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn a_single_choice_is_in_the_middle() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            for value in [0.0, 16.0] {
                let direction = Direction::of_choices(scale, &[value], no_room);
                assert_eq!(direction.map(&value, (0, 100)), 50);
            }
        }
    }

    #[test]
    fn choices_without_room_for_their_names_have_none() {
        let values = [0.0, 1.0, 2.0, 3.0, 4.0, 100.0];
        let direction = Direction::of_choices(Scale::Linear, &values, |_| 0.1);
        assert_eq!(direction.ticks(), [4.0, 100.0]);
    }

    #[test]
    fn labels_have_no_idle_decimals() {
        let labels = [0.0, 0.002, 0.5, 1.0, 10_000.0].map(label);
        assert_eq!(labels, ["0", "0.002", "0.5", "1", "10,000"]);
    }
}
