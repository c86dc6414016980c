import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { type TestContext, test } from "node:test";
import { setTimeout, setTimeout as sleep } from "node:timers/promises";
import {
  backoff,
  type Check,
  CheckError,
  Client,
  Pacer,
  parseRetryAfter,
  type Verdict,
  WaitExceededError,
} from "../src/index.js";
import { serve } from "./server.js";

const LIMITS = `
domain: jobs
defaults: {algorithm: sliding_window_log}
descriptors:
  - {key: provider, value: mail, rate_limit: {unit: second, requests_per_unit: 20, algorithm: gcra, burst: 1}}
  - {key: provider, value: slow, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: provider, value: wide, rate_limit: {unit: hour, requests_per_unit: 5}}
`;

function check(provider: string): Check {
  return { domain: "jobs", descriptors: [{ entries: { provider } }] };
}

async function connected(t: TestContext, flags = ["--dynamic-metadata"]): Promise<Client> {
  const client = new Client((await serve(t, LIMITS, flags)).grpc, { timeoutMs: 5_000 });
  t.after(() => client.close());
  await client.health();
  return client;
}

/** A client whose checks are answered by a function. */
function answered(t: TestContext, answer: (call: number) => Promise<Partial<Verdict>>) {
  const client = new Client("127.0.0.1:1");
  const calls: number[] = [];
  const refund = t.mock.method(client, "refund", async () => ({ allowed: true }) as Verdict);
  t.mock.method(client, "check", async () => {
    calls.push(performance.now());
    return answer(calls.length) as Promise<Verdict>;
  });
  return { client, calls, refund };
}

test("acquire waits until the limit allows, in order", async (t) => {
  const client = await connected(t);
  const begin = performance.now();
  const order: number[] = [];
  const waits = Array.from({ length: 10 }, async (_, at) => {
    const verdict = await client.acquire(check("mail"));
    assert.equal(verdict.allowed, true);
    order.push(at);
  });
  await Promise.all(waits);
  assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  // Nine emission intervals of 50 ms; the first one began before.
  assert.ok(performance.now() - begin >= 9 * 50 - 5);
});

test("without dynamic metadata, acquire waits whole seconds", async (t) => {
  const client = await connected(t, []);
  await client.acquire(check("mail"));
  const begin = performance.now();
  await client.acquire(check("mail"));
  assert.ok(performance.now() - begin >= 1_000);
});

test("only the first waiter asks, and not before the time that the service reported", async (t) => {
  const { client, calls } = answered(t, async (call) =>
    call === 2 ? { allowed: false, retryAfterMs: 60 } : { allowed: true },
  );
  await Promise.all([client.acquire(check("a")), client.acquire(check("a")), client.acquire(check("a"))]);
  assert.equal(calls.length, 4);
  assert.ok(calls[2]! - calls[1]! >= 60, `${calls}`);
});

test("keys have schedules of their own", async (t) => {
  const { client, calls } = answered(t, async (call) =>
    call === 1 ? { allowed: false, retryAfterMs: 3_600_000 } : { allowed: true },
  );
  const stop = new AbortController();
  const slow = client.acquire(check("a"), { signal: stop.signal });
  await client.acquire(check("b"));
  assert.equal(calls.length, 2);
  stop.abort();
  await assert.rejects(slow, { name: "AbortError" });
});

test("a refusal without a time is asked again after a backoff", async (t) => {
  const { client, calls } = answered(t, async (call) => ({ allowed: call > 3 }));
  await client.acquire(check("a"));
  assert.equal(calls.length, 4);
});

test("waiters give up at once if the reported time exceeds their maximum wait", async (t) => {
  const client = await connected(t);
  await client.acquire(check("slow"));
  const begin = performance.now();
  const waits = [1_000, 2_000].map((maxWaitMs) => client.acquire(check("slow"), { maxWaitMs }));
  for (const result of await Promise.allSettled(waits)) {
    assert.ok(result.status === "rejected" && result.reason instanceof WaitExceededError);
    assert.ok((result.reason.retryAfterMs ?? 0) > 2_000);
  }
  assert.ok(performance.now() - begin < 1_000);
  await assert.rejects(client.acquire(check("slow"), { maxWaitMs: 0 }), WaitExceededError);
  await client.acquire(check("wide"), { maxWaitMs: 0 });
});

test("a maximum wait ends without a time from the service", async (t) => {
  const { client } = answered(t, async () => ({ allowed: false }));
  await assert.rejects(client.acquire(check("a"), { maxWaitMs: 50 }), WaitExceededError);
});

test("a waiter that gives up charges nothing", async (t) => {
  const client = await connected(t);
  const remaining = async () => (await client.peek(check("wide"))).statuses[0]?.remaining;
  const stop = new AbortController();
  const { signal } = stop;
  // The first is in flight and refunded, the second has not asked.
  const waits = [client.acquire(check("wide"), { signal }), client.acquire(check("wide"), { signal })];
  stop.abort(new Error("enough"));
  for (const wait of waits) {
    await assert.rejects(wait, /enough/);
  }
  await assert.rejects(client.acquire(check("wide"), { signal }), /enough/);
  // Behind the refund.
  await client.acquire(check("wide"));
  assert.equal(await remaining(), 4);
});

test("a check in flight that is allowed after its waiter left is refunded", async (t) => {
  const { client, refund } = answered(t, () => sleep(30, { allowed: true }));
  const [first, second] = [new AbortController(), new AbortController()];
  const waits = [first, second].map(({ signal }) => client.acquire(check("a"), { signal }));
  first.abort();
  await assert.rejects(waits[0]!, { name: "AbortError" });
  await waits[1];
  assert.equal(refund.mock.callCount(), 1);
});

test("a failed check fails its waiter only", async (t) => {
  const { client } = answered(t, async (call) => {
    if (call === 1) {
      throw new CheckError("unavailable", "gone");
    }
    return { allowed: true };
  });
  const waits = [client.acquire(check("a")), client.acquire(check("a"))];
  await assert.rejects(waits[0]!, { kind: "unavailable" });
  assert.equal((await waits[1])?.allowed, true);
});

test("a pacer shares the rate between priorities by weight", async (t) => {
  const pacer = new Pacer(await connected(t), check("mail"), { priorities: { high: 3, low: 1 } });
  const started: string[] = [];
  const job = (priority: "high" | "low") => pacer.run(() => void started.push(priority), { priority });
  await Promise.all([...Array.from({ length: 9 }, () => job("low")), ...Array.from({ length: 9 }, () => job("high"))]);
  const first = (count: number, priority: string) => started.slice(0, count).filter((it) => it === priority).length;
  assert.deepEqual([first(4, "high"), first(8, "high"), first(12, "high")], [3, 6, 9], started.join());
  assert.equal(started.length, 18);
});

test("a pacer returns what jobs return, and cancels those that wait", async (t) => {
  const pacer = new Pacer(await connected(t), check("slow"));
  assert.equal(await pacer.run(async () => 7), 7);
  const stop = new AbortController();
  const cancelled = pacer.run(() => assert.fail("started"), { signal: stop.signal });
  await sleep(20);
  stop.abort();
  await assert.rejects(cancelled, { name: "AbortError" });
  await assert.rejects(
    pacer.run(() => 1, { signal: stop.signal }),
    { name: "AbortError" },
  );
  const other = new Pacer(await connected(t), check("wide"));
  const failing = () => {
    throw new Error("job");
  };
  await assert.rejects(other.run(failing), /job/);
});

test("a pacer waits for verdicts, and rejects jobs whose limit does not apply", async (t) => {
  const kinds = ["unavailable", "deadline_exceeded"] as const;
  const { client, calls } = answered(t, async (call) => {
    const kind = kinds[call - 1];
    if (kind) {
      throw new CheckError(kind, kind);
    }
    return { allowed: true };
  });
  const failures: string[] = [];
  const pacer = new Pacer(client, check("a"), { onFailure: ({ kind }) => failures.push(kind) });
  assert.equal(await pacer.run(() => "ran"), "ran");
  assert.deepEqual([failures, calls.length], [[...kinds], 3]);
  const wrong = answered(t, async () => {
    throw new CheckError("override_not_applied", "unknown domain");
  });
  const stopped = new Pacer(wrong.client, check("a"));
  const runs = [stopped.run(() => 1), stopped.run(() => 2)];
  for (const run of runs) {
    await assert.rejects(run, { kind: "override_not_applied" });
  }
});

test("options of a pacer are checked", async () => {
  const client = new Client("127.0.0.1:1");
  for (const high of [0, -1, Number.NaN]) {
    assert.throws(() => new Pacer(client, check("a"), { priorities: { high } }), RangeError);
  }
  const priority = "none" as "high";
  await assert.rejects(
    new Pacer(client, check("a"), { priorities: { high: 1 } }).run(() => 1, { priority }),
    TypeError,
  );
});

test("backoff never returns before Retry-After", () => {
  for (let attempt = 0; attempt < 2_000; attempt++) {
    const most = Math.min(30_000, 100 * 2 ** attempt);
    for (const retryAfter of [undefined, 0, 2_000]) {
      const delay = backoff(retryAfter, attempt);
      assert.ok(delay >= (retryAfter ?? 0) && delay <= (retryAfter ?? 0) + most, `${retryAfter} ${attempt} ${delay}`);
    }
  }
  assert.equal(parseRetryAfter("2"), 2_000);
  assert.equal(parseRetryAfter("Wed, 21 Oct 2026 07:28:05 GMT", Date.UTC(2026, 9, 21, 7, 28)), 5_000);
  assert.equal(parseRetryAfter("Wed, 21 Oct 2026 07:28:05 GMT", Date.UTC(2026, 9, 22)), 0);
  for (const value of [null, undefined, "", " ", "soon", "-1 s"]) {
    assert.equal(parseRetryAfter(value), undefined, String(value));
  }
});

test("a caller that backs off succeeds", async (t) => {
  const statuses = [429, 429, 200];
  const server = createServer((_, answer) => {
    answer.writeHead(statuses.shift() ?? 500, { "retry-after": "0" }).end();
  });
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  t.after(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  let response: Response | undefined;
  // The code of docs/backoff.md.
  for (let attempt = 0; attempt < 5; attempt++) {
    response = await fetch(url);
    if (response.status !== 429) break;
    await setTimeout(backoff(parseRetryAfter(response.headers.get("retry-after")), attempt));
  }
  assert.equal(response?.status, 200);
});
