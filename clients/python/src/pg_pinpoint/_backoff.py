"""The time until the next attempt."""

import random
from collections.abc import Callable


def backoff(failures: int, shortest: float, longest: float, uniform: Callable[[float, float], float] = random.uniform) -> float:
    """Seconds until the next attempt after so many failures in succession, 1 or more."""
    return min(longest, shortest * 2.0 ** min(failures - 1, 60)) * uniform(0.5, 1)
