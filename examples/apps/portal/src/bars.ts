// The limits of a tenant as bars. Runs in the browser and in the test.

/** The answer of GET /usage, as far as the page shows it. */
export interface Usage {
  readonly descriptors: readonly {
    readonly entries: readonly { readonly key: string; readonly value: string }[];
    readonly unlimited: boolean;
    readonly limits: readonly Limit[];
  }[];
}

interface Limit {
  readonly name?: string;
  readonly requests_per_unit: number;
  readonly unit: string;
  readonly unit_multiplier: number;
  readonly capacity: number;
  readonly used: number;
  readonly remaining: number;
  readonly reset_seconds: number;
  readonly refused: boolean;
  readonly retry_after_seconds?: number;
  readonly shadow_mode: boolean;
}

/** HTML with a section for each descriptor and a bar for each of its limits. */
export function render(usage: Usage): string {
  return usage.descriptors
    .map(({ entries, unlimited, limits }) => {
      const title = entries.map(({ key, value }) => `${key} ${value}`).join(" · ");
      const bars = unlimited ? "<p>unlimited</p>" : limits.map(bar).join("") || "<p>no limit</p>";
      return `<section><h2>${escape(title)}</h2>${bars}</section>`;
    })
    .join("");
}

function bar(limit: Limit): string {
  const units = limit.unit_multiplier === 1 ? limit.unit : `${limit.unit_multiplier} ${limit.unit}s`;
  const rate = `${limit.requests_per_unit} per ${units}`;
  const share = limit.capacity === 0 ? 100 : Math.min(100, Math.round((100 * limit.used) / limit.capacity));
  const state = limit.refused && !limit.shadow_mode ? "refused" : share >= 80 ? "near" : "free";
  const wait =
    state === "refused" && limit.retry_after_seconds !== undefined
      ? `next in ${span(limit.retry_after_seconds)}`
      : `resets in ${span(limit.reset_seconds)}`;
  return (
    `<div class="limit ${state}"><span>${escape(limit.name ?? rate)}</span>` +
    `<div class="bar" role="meter" aria-valuemin="0" aria-valuemax="${limit.capacity}" aria-valuenow="${limit.used}">` +
    `<div style="width: ${share}%"></div></div>` +
    `<span>${limit.remaining} of ${limit.capacity} left (${escape(rate)}), ${wait}</span></div>`
  );
}

/** Whole seconds, minutes, hours or days, rounded up. */
function span(seconds: number): string {
  const units: [number, string][] = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
  ];
  const [length, unit] = units.find(([length]) => seconds >= 2 * length) ?? [1, "s"];
  return `${Math.ceil(seconds / length)} ${unit}`;
}

/** Values come from users: they must not become HTML. */
function escape(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
