import { validateHeaderName, validateHeaderValue } from "node:http";
import { type Descriptor, requestMessage } from "./check.js";
import { Client } from "./client.js";
import { CheckError } from "./errors.js";
import { retryAfterSeconds, type Verdict } from "./verdict.js";
import { limitPerWindow, type Window, windowSeconds } from "./window.js";

type MaybePromise<Value> = Value | Promise<Value>;

/**
 * Options of `rateLimit`: those of {@link BaseOptions}, with limits of the server ({@link ServerLimits}) or in the call
 * ({@link CallLimit}).
 */
export type RateLimitOptions<Request> = BaseOptions<Request> & (ServerLimits<Request> | CallLimit<Request>);

/**
 * Options of `rateLimit` for both kinds of limits.
 */
export interface BaseOptions<Request> {
  /** By default a client of `SLUICEGATE_ENDPOINT` or `127.0.0.1:8081`, which all middleware shares. */
  readonly client?: Client | undefined;
  /** Hits to charge; 1 by default. */
  readonly hits?: ((request: Request) => MaybePromise<number>) | undefined;
  /** If there is no verdict: `open` (default) lets the request pass, as Envoy does; `closed` answers 503. */
  readonly failureMode?: "open" | "closed" | undefined;
  /** Milliseconds to wait for an answer, in place of the client's. */
  readonly timeoutMs?: number | undefined;
  /** Requests that pass without a check. */
  readonly skip?: ((request: Request) => MaybePromise<boolean>) | undefined;
  /** Called for each refused request. Returns the body to answer with, or nothing for the default. */
  readonly onLimited?:
    ((request: Request, verdict: Verdict) => MaybePromise<LimitedBody | undefined | void>) | undefined;
  /** Called for each request without a verdict, in either failure mode: a place for a log line. */
  readonly onFailure?: ((request: Request, error: CheckError) => void) | undefined;
}

/**
 * Limits that the server's limits files have.
 */
export interface ServerLimits<Request> {
  /** Name of the limits file's domain. */
  readonly domain: string;
  /** Descriptors of a request; without any it passes. */
  readonly descriptors: (request: Request) => MaybePromise<readonly Descriptor[]>;
  readonly window?: never;
  readonly limit?: never;
  readonly keyFn?: never;
  readonly name?: never;
}

/**
 * A limit in the call. It is sent with each request as an override, so the server needs no rule. It needs the domain: a
 * limits file with nothing but `domain: app`.
 */
export interface CallLimit<Request> {
  /** A domain of the server; `app` by default. */
  readonly domain?: string | undefined;
  /** Length of the window: seconds, or text such as `"90s"` or `"15m"`. */
  readonly window: Window;
  /** Requests per window and key. */
  readonly limit: number;
  /** Key of a request, such as its IP address or user; without one it passes. */
  readonly keyFn: (request: Request) => MaybePromise<string | undefined>;
  /**
   * Name of the limit, by default its numbers. Limits of one name share counters, so that two routes with the same
   * numbers need names.
   */
  readonly name?: string | undefined;
  readonly descriptors?: never;
}

/**
 * Body of the answer to a refused request.
 */
export interface LimitedBody {
  /** The body. */
  readonly body: string | Uint8Array;
  /** Its type; `text/plain; charset=utf-8` by default. */
  readonly contentType?: string | undefined;
}

/** Names and values of HTTP headers. */
export type HeaderList = readonly (readonly [name: string, value: string])[];

/** What a middleware does with a request. */
export type Outcome =
  | { readonly passes: true; readonly headers: HeaderList }
  | {
      readonly passes: false;
      readonly status: number;
      readonly headers: HeaderList;
      readonly body: string | Uint8Array;
    };

const PASSES: Outcome = { passes: true, headers: [] };

const PROBLEM = "application/problem+json";

let sharedClient: Client | undefined;

/**
 * The decision of a middleware, for frameworks that this package has no adapter for.
 *
 * @throws TypeError, RangeError - the options are not valid
 */
export function limiter<Request>(options: RateLimitOptions<Request>): (request: Request) => Promise<Outcome> {
  const client = options.client ?? (sharedClient ??= new Client());
  const domain = options.domain ?? "app";
  const descriptorsOf = options.descriptors ?? overrides(options);
  return async (request) => {
    if (await options.skip?.(request)) {
      return PASSES;
    }
    const descriptors = await descriptorsOf(request);
    if (descriptors.length === 0) {
      return PASSES;
    }
    const hits = await options.hits?.(request);
    let verdict: Verdict;
    try {
      verdict = await client.check({ domain, descriptors, hits }, { timeoutMs: options.timeoutMs });
    } catch (error) {
      // Anything else is a mistake of the application.
      if (!(error instanceof CheckError)) {
        throw error;
      }
      options.onFailure?.(request, error);
      return options.failureMode === "closed" ? unavailable() : PASSES;
    }
    return verdict.allowed
      ? { passes: true, headers: httpHeaders(verdict) }
      : refused(verdict, (await options.onLimited?.(request, verdict)) ?? undefined);
  };
}

/** Descriptors of a limit in the call. */
function overrides<Request>(options: CallLimit<Request>): (request: Request) => Promise<readonly Descriptor[]> {
  const limit = limitPerWindow(options.limit, options.window);
  const name = options.name ?? `${options.limit}-per-${windowSeconds(options.window)}s`;
  const descriptor = (key: string): Descriptor => ({ entries: { limit: name, key }, limit });
  // So that a wrong number is found at the start.
  requestMessage({ domain: "", descriptors: [descriptor("")] });
  return async (request) => {
    const key = await options.keyFn(request);
    return key === undefined ? [] : [descriptor(key)];
  };
}

function refused(verdict: Verdict, own: LimitedBody | undefined): Outcome {
  const headers = httpHeaders(verdict);
  const get = (wanted: string) => headers.find(([name]) => name.toLowerCase() === wanted)?.[1];
  const others = headers.filter(([name]) => !["content-type", "retry-after"].includes(name.toLowerCase()));
  const seconds =
    retryAfterSeconds(verdict.responseHeaders) ??
    (verdict.retryAfterMs === undefined ? undefined : Math.max(1, Math.ceil(verdict.retryAfterMs / 1000)));
  const retryAfter = get("retry-after") ?? seconds?.toString();
  const text = "text/plain; charset=utf-8";
  const [contentType, body] = own
    ? [own.contentType ?? text, own.body]
    : verdict.body.length > 0
      ? [get("content-type") ?? text, verdict.body]
      : [PROBLEM, problem(429, "Too Many Requests", "The rate limit is exceeded.", seconds)];
  return {
    passes: false,
    status: 429,
    headers: [
      ...others,
      ...(retryAfter === undefined ? [] : [["retry-after", retryAfter] as const]),
      ["content-type", contentType],
    ],
    body,
  };
}

function unavailable(): Outcome {
  const body = problem(503, "Service Unavailable", "The rate limit service does not answer.");
  return { passes: false, status: 503, headers: [["content-type", PROBLEM]], body };
}

/** A body of RFC 9457. */
function problem(status: number, title: string, detail: string, retryAfter?: number): string {
  return JSON.stringify({ type: "about:blank", title, status, detail, retryAfter });
}

/** The headers of a verdict that HTTP permits: an invalid one must not fail the request. */
function httpHeaders(verdict: Verdict): HeaderList {
  return verdict.responseHeaders.flatMap(({ name, value }) => {
    try {
      validateHeaderName(name);
      validateHeaderValue(name, value);
      return [[name, value] as const];
    } catch {
      return [];
    }
  });
}
