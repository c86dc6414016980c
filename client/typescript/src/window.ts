import type { LimitOverride } from "./check.js";

/** Units of a window, the longest first, with their seconds. */
const UNITS = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
] as const;

const SECONDS_MAX = 366 * 86_400;

/**
 * Length of a window: seconds, or text as in limits files, such as `"90s"`, `"15m"`, `"1h 30m"` or `"7d"`.
 */
export type Window = number | string;

/**
 * A limit of `requests` per window, to send with a request.
 *
 * @param requests - hits per window, 0 to 4,294,967,295
 * @param window - whole seconds, 1 second to 366 days
 * @throws RangeError - the number or the window is not valid
 */
export function limitPerWindow(requests: number, window: Window): LimitOverride {
  const seconds = windowSeconds(window);
  const [unit, unitSeconds] = UNITS.find(([, length]) => seconds % length === 0) ?? (["second", 1] as const);
  const override: LimitOverride = { requestsPerUnit: requests, unit };
  return unitSeconds === seconds ? override : { ...override, unitMultiplier: seconds / unitSeconds };
}

/**
 * Seconds of a window.
 *
 * @throws RangeError - it is not a length, or not between 1 second and 366 days
 */
export function windowSeconds(window: Window): number {
  const seconds = typeof window === "number" ? window : parsed(window);
  if (!Number.isSafeInteger(seconds) || seconds < 1 || seconds > SECONDS_MAX) {
    throw new RangeError(
      `A window is whole seconds from 1s to 366d, such as "90s" or "15m": ${JSON.stringify(window)}`,
    );
  }
  return seconds;
}

function parsed(text: string): number {
  const parts = text.trim().split(/\s+/);
  return parts.reduce((sum, part) => {
    const [, number, letter] = /^(\d+)([smhd])$/.exec(part) ?? [];
    const unit = UNITS.find(([name]) => name.startsWith(letter ?? "none"));
    return sum + (unit ? Number(number) * unit[1] : Number.NaN);
  }, 0);
}
