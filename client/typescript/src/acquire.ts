import { backoff, jittered } from "./backoff.js";
import { type Check, pairs } from "./check.js";
import type { CallOptions, Client } from "./client.js";
import { WaitExceededError } from "./errors.js";
import { exactRetryAfterMs, type Verdict } from "./verdict.js";

/** The longest time that `setTimeout` can wait. */
const TIMER_MAX_MS = 2 ** 31 - 1;

/**
 * Options of {@link Client.acquire}.
 */
export interface AcquireOptions extends CallOptions {
  /** Milliseconds to wait at most; without end by default. A check in flight at that time still decides. */
  readonly maxWaitMs?: number | undefined;
  /** Stops waiting. A check in flight is awaited in the background and refunded. */
  readonly signal?: AbortSignal | undefined;
}

interface Waiter {
  readonly check: Check;
  readonly options: AcquireOptions;
  /** Time at which it stops waiting. */
  readonly deadline: number;
  readonly resolve: (verdict: Verdict) => void;
  readonly reject: (reason: unknown) => void;
}

/** The schedules of a client, by domain and descriptors. A schedule exists as long as it has waiters. */
export class Schedules {
  readonly #client: Client;
  readonly #schedules = new Map<string, Schedule>();

  constructor(client: Client) {
    this.#client = client;
  }

  /** See {@link Client.acquire}. */
  async acquire(check: Check, options: AcquireOptions): Promise<Verdict> {
    options.signal?.throwIfAborted();
    const key = JSON.stringify([check.domain, check.descriptors.map(({ entries, limit }) => [pairs(entries), limit])]);
    let schedule = this.#schedules.get(key);
    if (!schedule) {
      schedule = new Schedule(this.#client, () => this.#schedules.delete(key));
      this.#schedules.set(key, schedule);
    }
    return schedule.wait(check, options);
  }
}

/** The waiters of one key, the first of which asks. */
class Schedule {
  readonly #client: Client;
  readonly #onEmpty: () => void;
  readonly #waiters: Waiter[] = [];
  /** Time before which the service refuses. */
  #opensAt = 0;
  /** Refusals without a time in a row. */
  #refusals = 0;
  #isRunning = false;
  /** The waiter whose check is in flight. */
  #inFlight: Waiter | undefined;
  /** Ends a pause. */
  #wake: (() => void) | undefined;

  constructor(client: Client, onEmpty: () => void) {
    this.#client = client;
    this.#onEmpty = onEmpty;
  }

  async wait(check: Check, options: AcquireOptions): Promise<Verdict> {
    const { maxWaitMs = Number.POSITIVE_INFINITY, signal } = options;
    const now = performance.now();
    const deadline = now + maxWaitMs;
    if (deadline < this.#opensAt) {
      throw new WaitExceededError(this.#opensAt - now);
    }
    let waiter: Waiter | undefined;
    let timer: NodeJS.Timeout | undefined;
    const abort = () => waiter && this.#leave(waiter, signal?.reason);
    try {
      return await new Promise<Verdict>((resolve, reject) => {
        const joined: Waiter = { check, options, deadline, resolve, reject };
        waiter = joined;
        this.#waiters.push(joined);
        signal?.addEventListener("abort", abort);
        if (maxWaitMs <= TIMER_MAX_MS) {
          timer = setTimeout(() => this.#expire(joined), maxWaitMs);
        }
        void this.#run();
      });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }

  #expire(waiter: Waiter): void {
    if (waiter !== this.#inFlight) {
      this.#leave(waiter, new WaitExceededError());
    }
  }

  /** Ends a wait without a verdict. */
  #leave(waiter: Waiter, reason: unknown): void {
    this.#remove(waiter);
    waiter.reject(reason);
  }

  #remove(waiter: Waiter): void {
    const at = this.#waiters.indexOf(waiter);
    if (at >= 0) {
      this.#waiters.splice(at, 1);
    }
    if (this.#waiters.length === 0) {
      this.#wake?.();
    }
  }

  async #run(): Promise<void> {
    if (this.#isRunning) {
      return;
    }
    this.#isRunning = true;
    for (let first = this.#waiters[0]; first; first = this.#waiters[0]) {
      this.#inFlight = first;
      await this.#ask(first);
      this.#inFlight = undefined;
    }
    this.#isRunning = false;
    this.#onEmpty();
  }

  async #ask(waiter: Waiter): Promise<void> {
    let verdict: Verdict;
    try {
      verdict = await this.#client.check(waiter.check, waiter.options);
    } catch (error) {
      this.#leave(waiter, error);
      return;
    }
    const hasLeft = !this.#waiters.includes(waiter);
    if (!verdict.allowed) {
      await this.#pause(exactRetryAfterMs(verdict));
    } else if (hasLeft) {
      // If this fails, the hits stay charged: too little passes, not too much.
      await this.#client.refund(waiter.check, undefined, waiter.options).catch(() => undefined);
    } else {
      this.#refusals = 0;
      this.#remove(waiter);
      waiter.resolve(verdict);
    }
  }

  /** Waits after a refusal, while there are waiters. */
  async #pause(retryAfterMs: number | undefined): Promise<void> {
    this.#inFlight = undefined;
    const now = performance.now();
    const pauseMs = retryAfterMs === undefined ? backoff(undefined, this.#refusals++) : jittered(retryAfterMs);
    this.#opensAt = now + (retryAfterMs ?? 0);
    for (const waiter of this.#waiters.filter(({ deadline }) => deadline < this.#opensAt || deadline <= now)) {
      this.#leave(waiter, new WaitExceededError(retryAfterMs));
    }
    // Timers fire up to a millisecond early.
    for (let left = pauseMs; left > 0 && this.#waiters.length > 0; left = now + pauseMs - performance.now()) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, Math.min(Math.ceil(left), TIMER_MAX_MS));
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    this.#wake = undefined;
  }
}
