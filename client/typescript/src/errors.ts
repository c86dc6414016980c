/**
 * Why a check failed:
 * - `deadline_exceeded`: no answer within the timeout. The hits may have been charged.
 * - `unavailable`: the service cannot be reached, or reports that it cannot answer.
 * - `override_not_applied`: the service ignored the limit that the request brought: it does not know the domain.
 * - `other`: see {@link CheckError.code}.
 */
export type CheckErrorKind = "deadline_exceeded" | "unavailable" | "override_not_applied" | "other";

/**
 * A check without a verdict. The client never repeats a failed call, because it may have been counted.
 */
export class CheckError extends Error {
  override readonly name = "CheckError";
  /** What kind of failure. */
  readonly kind: CheckErrorKind;
  /** The gRPC status code; `undefined` for `override_not_applied`. */
  readonly code: number | undefined;

  constructor(kind: CheckErrorKind, message: string, options: ErrorOptions & { code?: number } = {}) {
    super(message, options);
    this.kind = kind;
    this.code = options.code;
  }
}

/**
 * `acquire` stopped waiting: the maximum wait would be exceeded. Nothing is charged.
 */
export class WaitExceededError extends Error {
  override readonly name = "WaitExceededError";
  /** Milliseconds until the next attempt can pass, if known. */
  readonly retryAfterMs: number | undefined;

  constructor(retryAfterMs?: number) {
    super("The rate limit does not allow the request within the maximum wait.");
    this.retryAfterMs = retryAfterMs;
  }
}
