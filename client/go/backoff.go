package sluicegate

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	backoffBase = 100 * time.Millisecond
	backoffMax  = 30 * time.Second
	// jitterMin is the minimum jitter, which spreads callers with the same retry time.
	jitterMin = time.Millisecond
)

// Backoff returns how long the caller of a rate limited service waits before it tries again. The service asked it to
// wait retryAfter, or 0 if it did not say; attempt is the number of attempts before this one. The delay is retryAfter
// and a random time of up to 100 ms · 2^attempt, at most 30 s, so that callers that were asked the same do not return
// together.
func Backoff(retryAfter time.Duration, attempt int) time.Duration {
	longest := backoffMax
	// 2^9 · 100 ms is longer than the maximum.
	if attempt < 9 {
		longest = backoffBase << max(0, attempt)
	}
	return max(0, retryAfter) + random(longest)
}

// RetryAfter returns the time that a response asks to wait by its header Retry-After, in seconds or as a date. It
// returns false without a valid header.
func RetryAfter(response *http.Response) (time.Duration, bool) {
	value := strings.TrimSpace(response.Header.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(value, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	date, err := http.ParseTime(value)
	return max(0, time.Until(date)), err == nil
}

// withJitter returns a delay up to a tenth longer, and at least jitterMin.
func withJitter(delay time.Duration) time.Duration {
	return delay + max(jitterMin, random(delay/10))
}

// random returns a duration from 0 up to longest.
func random(longest time.Duration) time.Duration {
	if longest <= 0 {
		return 0
	}
	return time.Duration(rand.Int64N(int64(longest) + 1))
}
