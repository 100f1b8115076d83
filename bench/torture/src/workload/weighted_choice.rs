//! Choices that are not equally likely.

use rand::{Rng, RngExt};

/// Chooses one of these; its probability is its weight, divided by the sum of all weights.
pub fn choose<T: Copy>(rng: &mut impl Rng, weighted: &[(u32, T)]) -> T {
    let mut number = rng.random_range(0..weighted.iter().map(|(weight, _)| weight).sum());
    for &(weight, choice) in weighted {
        if number < weight {
            return choice;
        }
        number -= weight;
    }
    unreachable!("the number is less than the sum of the weights");
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::*;

    #[test]
    fn choices_are_as_frequent_as_their_weights() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut found = [0; 3];
        for _ in 0..10_000 {
            found[choose(&mut rng, &[(20, 0), (0, 1), (80, 2)])] += 1;
        }
        assert_eq!(found[1], 0);
        assert!((1800..2200).contains(&found[0]), "{found:?}");
    }
}
