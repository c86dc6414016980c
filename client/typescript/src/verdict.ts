import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import type { Duration } from "@bufbuild/protobuf/wkt";
import {
  type RateLimitResponse,
  type RateLimitResponse_DescriptorStatus,
  type RateLimitResponse_HeaderValue,
  RateLimitResponse_Code as WireCode,
  RateLimitResponse_RateLimit_Unit as WireUnit,
} from "./gen/sluicegate/client/v1/rls_pb.js";
import { CheckError } from "./errors.js";

/**
 * The answer to a check.
 */
export interface Verdict {
  /** Whether the request is allowed. An unknown code counts as allowed, as in Envoy. */
  readonly allowed: boolean;
  /** One status for each descriptor, in the order of the request. */
  readonly statuses: readonly Status[];
  /** Milliseconds after which the same hits can pass; `undefined` if not known. */
  readonly retryAfterMs: number | undefined;
  /** Headers for the response to the client. */
  readonly responseHeaders: readonly Header[];
  /** Headers to add to a request that is allowed. */
  readonly requestHeaders: readonly Header[];
  /** Body of the response to a refused request; empty if the service sends none. */
  readonly body: Uint8Array;
  /** Data for the caller's logs, if the service sends any. */
  readonly dynamicMetadata: JsonObject | undefined;
}

/**
 * The decision for one descriptor.
 */
export interface Status {
  /** Whether the descriptor is within its limit. */
  readonly code: "unknown" | "ok" | "over_limit";
  /** The limit that applied; `undefined` if none did. */
  readonly limit: Limit | undefined;
  /** Hits that can still pass. */
  readonly remaining: number;
  /** Milliseconds until the reset, rounded up. */
  readonly resetAfterMs: number | undefined;
}

/**
 * The limit that applied to a descriptor.
 */
export interface Limit {
  /** Name of the limit; empty if it has none. */
  readonly name: string;
  /** Hits per window. */
  readonly requestsPerUnit: number;
  /** Unit of the window; `undefined` if the service reports none, or an unknown one. */
  readonly unit: Unit | undefined;
  /** Units per window. */
  readonly unitMultiplier: number;
}

/** A unit of time of Envoy's rate limit API. */
export type Unit = "second" | "minute" | "hour" | "day" | "week" | "month" | "year";

/**
 * An HTTP header.
 */
export interface Header {
  /** Name as the service sends it. */
  readonly name: string;
  /** Value with one character for each byte, as Node.js and `fetch` expect header values. */
  readonly value: string;
}

const UNITS: Readonly<Record<number, Unit>> = {
  [WireUnit.SECOND]: "second",
  [WireUnit.MINUTE]: "minute",
  [WireUnit.HOUR]: "hour",
  [WireUnit.DAY]: "day",
  [WireUnit.WEEK]: "week",
  [WireUnit.MONTH]: "month",
  [WireUnit.YEAR]: "year",
};

/**
 * The verdict of a response.
 *
 * @param overrides - for each descriptor of the request, whether it brought a limit
 * @throws CheckError - the service allows the request without applying a limit that it brought
 */
export function verdictOf(response: RateLimitResponse, overrides: readonly boolean[]): Verdict {
  const allowed = response.overallCode !== WireCode.OVER_LIMIT;
  const isIgnored = (isOverride: boolean, at: number) => {
    const status = response.statuses[at];
    return isOverride && (status === undefined || (status.code !== WireCode.OVER_LIMIT && !status.currentLimit));
  };
  if (allowed && overrides.some(isIgnored)) {
    throw new CheckError(
      "override_not_applied",
      "The rate limit service did not apply the limit of the request: add a limits file with the domain.",
    );
  }
  const responseHeaders = response.responseHeadersToAdd.map(headerOf);
  const resets = response.statuses
    .filter((status) => status.code === WireCode.OVER_LIMIT)
    .map((status) => milliseconds(status.durationUntilReset))
    .filter((reset) => reset !== undefined);
  const resetMs = resets.length > 0 ? Math.max(...resets) : undefined;
  const seconds = retryAfterSeconds(responseHeaders);
  const secondsMs = seconds === undefined ? resetMs : seconds * 1000;
  return {
    allowed,
    statuses: response.statuses.map(statusOf),
    retryAfterMs: retryAfterMilliseconds(responseHeaders) ?? secondsMs,
    responseHeaders,
    requestHeaders: response.requestHeadersToAdd.map(headerOf),
    body: response.rawBody,
    dynamicMetadata: response.dynamicMetadata,
  };
}

/** The whole number of seconds of the header `Retry-After`, if it has one. */
export function retryAfterSeconds(headers: readonly Header[]): number | undefined {
  return wholeNumber(headers, "retry-after");
}

/** The whole number of milliseconds of the header `Retry-After-Ms`, if it has one. */
function retryAfterMilliseconds(headers: readonly Header[]): number | undefined {
  return wholeNumber(headers, "retry-after-ms");
}

function wholeNumber(headers: readonly Header[], wanted: string): number | undefined {
  const value = headers.find(({ name }) => name.toLowerCase() === wanted)?.value.trim();
  return value !== undefined && /^\d{1,12}$/.test(value) ? Number(value) : undefined;
}

/**
 * Milliseconds to wait after a refusal. Without the header `Retry-After-Ms`, the time of a response is in whole seconds,
 * because Envoy expects that; Sluicegate's dynamic metadata (`--dynamic-metadata`) have the exact one.
 */
export function exactRetryAfterMs({ retryAfterMs, dynamicMetadata }: Verdict): number | undefined {
  const seconds = objects(dynamicMetadata?.["descriptors"])
    .filter((descriptor) => descriptor["code"] === "OVER_LIMIT")
    .flatMap((descriptor) => objects(descriptor["limits"]))
    .map((limit) => limit["retryAfter"])
    .filter((retryAfter) => typeof retryAfter === "number");
  const exact = Math.max(0, ...seconds);
  // Otherwise they are about something else, or the time is exact already.
  return exact > 0 && Math.ceil(exact) * 1000 === retryAfterMs ? Math.ceil(exact * 1000) : retryAfterMs;
}

function objects(list: JsonValue | undefined): JsonObject[] {
  const isObject = (value: JsonValue): value is JsonObject => {
    return typeof value === "object" && value !== null && !Array.isArray(value);
  };
  return Array.isArray(list) ? list.filter(isObject) : [];
}

function statusOf(status: RateLimitResponse_DescriptorStatus): Status {
  const limit = status.currentLimit;
  return {
    code: status.code === WireCode.OK ? "ok" : status.code === WireCode.OVER_LIMIT ? "over_limit" : "unknown",
    limit: limit && {
      name: limit.name,
      requestsPerUnit: limit.requestsPerUnit,
      unit: UNITS[limit.unit],
      unitMultiplier: limit.unitMultiplier ?? 1,
    },
    remaining: status.limitRemaining,
    resetAfterMs: milliseconds(status.durationUntilReset),
  };
}

function headerOf(header: RateLimitResponse_HeaderValue): Header {
  const bytes = header.value === "" ? Buffer.from(header.rawValue) : Buffer.from(header.value, "utf8");
  return { name: header.key, value: bytes.toString("latin1") };
}

/** Milliseconds of a duration, rounded up. A negative one counts as none. */
function milliseconds(duration: Duration | undefined): number | undefined {
  if (duration === undefined || duration.seconds < 0n || duration.nanos < 0) {
    return undefined;
  }
  return Number(duration.seconds) * 1000 + Math.ceil(duration.nanos / 1e6);
}
