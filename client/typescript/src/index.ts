/**
 * Client of Sluicegate and of every service with Envoy's rate limit API.
 *
 * Middleware is in `@sluicegate/client/express`, `@sluicegate/client/fastify` and `@sluicegate/client/fetch`.
 *
 * @module
 */
export type { AcquireOptions } from "./acquire.js";
export { backoff, parseRetryAfter } from "./backoff.js";
export type { Check, Descriptor, Entries, LimitOverride } from "./check.js";
export { type CallOptions, Client, type ClientOptions, type HealthStatus, type TlsOptions } from "./client.js";
export { CheckError, type CheckErrorKind, WaitExceededError } from "./errors.js";
export {
  bodyField,
  clientIp,
  type ClientIpOptions,
  descriptorsOf,
  header,
  type KeyFunction,
  type KeyRequest,
  user,
} from "./keys.js";
export {
  type BaseOptions,
  type CallLimit,
  type HeaderList,
  type LimitedBody,
  limiter,
  type Outcome,
  type RateLimitOptions,
  type ServerLimits,
} from "./limiter.js";
export { Pacer, type PacerOptions, type RunOptions } from "./pacer.js";
export type { Header, Limit, Status, Unit, Verdict } from "./verdict.js";
export { limitPerWindow, type Window } from "./window.js";
