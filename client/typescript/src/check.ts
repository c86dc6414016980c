import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  OverrideUnit,
  type RateLimitDescriptorSchema,
  type RateLimitRequest,
  RateLimitRequestSchema,
} from "./gen/sluicegate/client/v1/rls_pb.js";

const UINT32_MAX = 0xffff_ffff;

/**
 * A request to the rate limit service. It is allowed if every descriptor is within its limits.
 */
export interface Check {
  /** Name of the limits file's domain. */
  readonly domain: string;
  /** At least one descriptor. Each is matched by itself. */
  readonly descriptors: readonly Descriptor[];
  /** Hits to charge to each descriptor without its own; 1 by default, 0 is a peek. */
  readonly hits?: number | undefined;
}

/**
 * Entries that a rule of a limits file matches.
 */
export interface Descriptor {
  /** Keys and values, the outermost level first. */
  readonly entries: Entries;
  /** Hits to charge to this descriptor; 0 is a peek. */
  readonly hits?: number | undefined;
  /** Hits to refund to this descriptor; excludes `hits`. */
  readonly refund?: number | undefined;
  /** A limit that replaces the one of the matched rule. */
  readonly limit?: LimitOverride | undefined;
}

/**
 * Entries as an object or as pairs. Use pairs if a key repeats or is a number: objects put such keys in another order.
 */
export type Entries = Readonly<Record<string, string>> | readonly (readonly [key: string, value: string])[];

/**
 * A limit that a request brings. See {@link limitPerWindow} for windows of any length.
 */
export interface LimitOverride {
  /** Hits per window. */
  readonly requestsPerUnit: number;
  /** Unit of the window. */
  readonly unit: "second" | "minute" | "hour" | "day" | "month" | "year";
  /** Units per window, 1 by default. */
  readonly unitMultiplier?: number | undefined;
}

const UNITS = {
  second: OverrideUnit.SECOND,
  minute: OverrideUnit.MINUTE,
  hour: OverrideUnit.HOUR,
  day: OverrideUnit.DAY,
  month: OverrideUnit.MONTH,
  year: OverrideUnit.YEAR,
} as const;

/** The pairs of keys and values of a descriptor. */
export function pairs(entries: Entries): readonly (readonly [string, string])[] {
  return Array.isArray(entries) ? entries : Object.entries(entries);
}

/**
 * The message of a check.
 *
 * @throws TypeError, RangeError - the check is not valid
 */
export function requestMessage(check: Check): RateLimitRequest {
  if (check.descriptors.length === 0) {
    throw new TypeError("A check needs at least one descriptor.");
  }
  const hits = check.hits === undefined ? undefined : whole("hits", check.hits, Number.MAX_SAFE_INTEGER);
  // In the request, zero means unset and the number has 32 bits: other numbers go to each descriptor.
  const fits = hits !== undefined && hits > 0 && hits <= UINT32_MAX;
  const inherited = fits ? undefined : hits;
  return create(RateLimitRequestSchema, {
    domain: check.domain,
    descriptors: check.descriptors.map((descriptor) => descriptorMessage(descriptor, inherited)),
    hitsAddend: fits ? hits : 0,
  });
}

function descriptorMessage(
  descriptor: Descriptor,
  inherited: number | undefined,
): MessageInitShape<typeof RateLimitDescriptorSchema> {
  if (descriptor.hits !== undefined && descriptor.refund !== undefined) {
    throw new TypeError("A descriptor has either hits or a refund.");
  }
  const hits = descriptor.refund ?? descriptor.hits ?? inherited;
  const { limit } = descriptor;
  return {
    entries: pairs(descriptor.entries).map(([key, value]) => ({ key, value })),
    isNegativeHits: descriptor.refund !== undefined,
    ...(hits !== undefined && { hitsAddend: BigInt(whole("hits", hits, Number.MAX_SAFE_INTEGER)) }),
    ...(limit && {
      limit: {
        requestsPerUnit: whole("requestsPerUnit", limit.requestsPerUnit, UINT32_MAX),
        unit: UNITS[limit.unit],
        ...(limit.unitMultiplier !== undefined && {
          unitMultiplier: whole("unitMultiplier", limit.unitMultiplier, UINT32_MAX),
        }),
      },
    }),
  };
}

function whole(name: string, number: number, max: number): number {
  if (!Number.isInteger(number) || number < 0 || number > max) {
    throw new RangeError(`${name} must be a whole number from 0 to ${max}: ${number}`);
  }
  return number;
}
