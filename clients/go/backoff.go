package pinpoint

import (
	"math"
	"time"
)

// backoff returns the time until the next attempt after so many failures in succession, at least one. random returns
// a number from 0 to 1.
func backoff(minimum, maximum time.Duration, failures int, random func() float64) time.Duration {
	delay := min(float64(maximum), float64(minimum)*math.Exp2(float64(failures-1)))
	return time.Duration(delay * (0.5 + random()/2))
}
