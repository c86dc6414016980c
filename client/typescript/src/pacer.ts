import { setTimeout as sleep } from "node:timers/promises";
import { backoff } from "./backoff.js";
import type { Check } from "./check.js";
import type { CallOptions, Client } from "./client.js";
import { CheckError } from "./errors.js";

/**
 * Options of a {@link Pacer}.
 */
export interface PacerOptions<Priority extends string> extends CallOptions {
  /**
   * Weights of the priorities, such as `{ high: 3, low: 1 }`: while jobs of several priorities wait, they start in
   * these proportions. Jobs without a priority have the first one.
   */
  readonly priorities?: Readonly<Record<Priority, number>> | undefined;
  /** Called for each check without a verdict. The pacer then waits and asks again: no job starts without a verdict. */
  readonly onFailure?: ((error: CheckError) => void) | undefined;
}

/**
 * Options of a job.
 */
export interface RunOptions<Priority extends string> {
  /** The priority; by default the first one of the pacer. */
  readonly priority?: Priority | undefined;
  /** Cancels the job if it has not started; `AbortSignal.timeout(ms)` bounds the wait. */
  readonly signal?: AbortSignal | undefined;
}

interface Job {
  readonly start: () => void;
  readonly reject: (reason: unknown) => void;
}

/** The jobs of one priority. */
interface Lane {
  readonly weight: number;
  readonly jobs: Job[];
  credit: number;
}

/**
 * Starts jobs no faster than the rate limit allows: a queue in front of a service that refuses fast callers.
 */
export class Pacer<Priority extends string = "default"> {
  readonly #client: Client;
  readonly #check: Check;
  readonly #options: PacerOptions<Priority>;
  readonly #lanes: ReadonlyMap<string, Lane>;
  /** Stops the wait for the next job; set while one runs. */
  #waiting: AbortController | undefined;

  /**
   * @param check - what each job asks for
   * @throws RangeError - a weight is not a positive number
   */
  constructor(client: Client, check: Check, options: PacerOptions<Priority> = {}) {
    this.#client = client;
    this.#check = check;
    this.#options = options;
    const weights = Object.entries<number>(options.priorities ?? { default: 1 });
    if (weights.length === 0 || !weights.every(([, weight]) => weight > 0 && Number.isFinite(weight))) {
      throw new RangeError("Each priority needs a positive weight.");
    }
    this.#lanes = new Map(weights.map(([name, weight]) => [name, { weight, jobs: [], credit: 0 }]));
  }

  /**
   * Runs a job when the rate limit allows it. Jobs of one priority start in order. The result is the job's.
   *
   * @throws CheckError - the service does not apply the limit of the check (`override_not_applied`)
   * @throws TypeError - there is no such priority
   */
  async run<Result>(job: () => Result | Promise<Result>, options: RunOptions<Priority> = {}): Promise<Result> {
    const { priority, signal } = options;
    signal?.throwIfAborted();
    const lane = priority === undefined ? [...this.#lanes.values()][0] : this.#lanes.get(priority);
    if (!lane) {
      throw new TypeError(`The pacer has no priority ${JSON.stringify(priority)}.`);
    }
    return new Promise<Result>((resolve, reject) => {
      const abort = () => {
        lane.jobs.splice(lane.jobs.indexOf(queued), 1);
        if (this.#isIdle()) {
          this.#waiting?.abort();
        }
        reject(signal?.reason);
      };
      const start = () => {
        signal?.removeEventListener("abort", abort);
        new Promise<Result>((started) => started(job())).then(resolve, reject);
      };
      const queued: Job = { start, reject };
      signal?.addEventListener("abort", abort, { once: true });
      lane.jobs.push(queued);
      void this.#dispatch();
    });
  }

  async #dispatch(): Promise<void> {
    if (this.#waiting) {
      return;
    }
    for (let failures = 0; !this.#isIdle();) {
      const { signal } = (this.#waiting = new AbortController());
      try {
        const { timeoutMs } = this.#options;
        await this.#client.acquire(this.#check, { signal, timeoutMs });
        failures = 0;
        const job = this.#next();
        if (job) {
          job.start();
        } else {
          // The last job was cancelled meanwhile.
          await this.#client.refund(this.#check).catch(() => undefined);
        }
      } catch (error) {
        if (signal.aborted) {
          continue;
        }
        if (!(error instanceof CheckError) || error.kind === "override_not_applied") {
          this.#rejectAll(error);
          continue;
        }
        this.#options.onFailure?.(error);
        await sleep(backoff(undefined, failures++), undefined, { signal }).catch(() => undefined);
      }
    }
    this.#waiting = undefined;
  }

  /** The next job by smooth weighted round robin over the priorities that have one. */
  #next(): Job | undefined {
    const lanes = [...this.#lanes.values()].filter(({ jobs }) => jobs.length > 0);
    lanes.forEach((lane) => (lane.credit += lane.weight));
    const next = lanes.reduce<Lane | undefined>(
      (best, lane) => (best && best.credit >= lane.credit ? best : lane),
      undefined,
    );
    if (!next) {
      return undefined;
    }
    next.credit -= lanes.reduce((sum, { weight }) => sum + weight, 0);
    const job = next.jobs.shift();
    if (next.jobs.length === 0) {
      // Credit is not saved up.
      next.credit = 0;
    }
    return job;
  }

  #isIdle(): boolean {
    return [...this.#lanes.values()].every(({ jobs }) => jobs.length === 0);
  }

  #rejectAll(reason: unknown): void {
    for (const lane of this.#lanes.values()) {
      lane.jobs.splice(0).forEach((job) => job.reject(reason));
    }
  }
}
