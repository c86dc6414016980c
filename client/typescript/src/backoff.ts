const BASE_MS = 100;
const CAP_MS = 30_000;

/** Share of the wait that is added at random at most, so that waiting callers do not return together. */
const JITTER = 0.1;

/**
 * Milliseconds until a caller of a rate limited service should try again: what `Retry-After` asks for, plus a random
 * part of up to 100 ms · 2^attempt, at most 30 s, so that callers that were refused together do not return together.
 *
 * @param retryAfterMs - what the service asks for, if anything: see {@link parseRetryAfter}
 * @param attempt - attempts that failed before, 0 for the first
 */
export function backoff(retryAfterMs: number | undefined, attempt: number): number {
  return Math.max(0, retryAfterMs ?? 0) + Math.random() * Math.min(CAP_MS, BASE_MS * 2 ** attempt);
}

/**
 * Milliseconds of a `Retry-After` header: seconds, or a date. `undefined` if it is absent or malformed.
 *
 * @param now - milliseconds since 1970, for dates
 */
export function parseRetryAfter(value: string | null | undefined, now = Date.now()): number | undefined {
  const text = value?.trim();
  if (!text) {
    return undefined;
  }
  if (/^\d+$/.test(text)) {
    return Number(text) * 1000;
  }
  const date = Date.parse(text);
  return Number.isNaN(date) ? undefined : Math.max(0, date - now);
}

/** A wait with jitter: longer by up to 10 %, and by at least 1 ms. */
export function jittered(waitMs: number): number {
  return waitMs + Math.max(1, Math.random() * JITTER * waitMs);
}
