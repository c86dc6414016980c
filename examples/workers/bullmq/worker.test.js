import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { test } from "node:test";
import { Queue } from "bullmq";
import { Redis } from "ioredis";
import { redis, serve } from "../../../client/typescript/build/test/server.js";

const JOBS = 300;
const INTERVAL_MS = 100;

/**
 * A provider that permits 10 requests a second, and two at once: requests sent 100 ms apart do not arrive so exactly. It
 * answers 429 to others.
 */
async function startProvider(t) {
  const seen = { statuses: [], queues: [], begin: 0, end: 0 };
  let free = 0;
  const server = createServer(async (request, response) => {
    const now = performance.now();
    const status = free > now + INTERVAL_MS ? 429 : 200;
    if (status === 200) {
      free = Math.max(free, now) + INTERVAL_MS;
    }
    seen.begin ||= now;
    seen.end = now;
    seen.statuses.push(status);
    let body = "";
    for await (const chunk of request) {
      body += chunk;
    }
    seen.queues.push(JSON.parse(body).queue);
    response.writeHead(status, { "retry-after": "1" }).end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, seen };
}

test("two workers send 300 jobs at the provider's rate, and share it by priority", async (t) => {
  const { grpc } = await serve(t, readFileSync("limits.yaml", "utf8"), ["--dynamic-metadata"]);
  const provider = await startProvider(t);
  const url = `redis://127.0.0.1:${await redis(t)}`;
  const connection = new Redis(url, { maxRetriesPerRequest: null });
  const queues = ["interactive", "batch"].map((name) => new Queue(name, { connection }));
  for (const queue of queues) {
    await queue.addBulk(
      Array.from({ length: JOBS / 2 }, (_, at) => ({ name: "send", data: { queue: queue.name, at } })),
    );
  }
  const env = { ...process.env, SLUICEGATE_ENDPOINT: grpc, REDIS_URL: url, PROVIDER_URL: provider.url };
  const workers = [1, 2].map(() =>
    spawn(process.execPath, ["worker.js"], { env, stdio: ["ignore", "ignore", "inherit"] }),
  );
  try {
    const completed = async () =>
      (await Promise.all(queues.map((queue) => queue.getCompletedCount()))).reduce((a, b) => a + b);
    while ((await completed()) < JOBS) {
      assert.ok(
        workers.every((worker) => worker.exitCode === null),
        "a worker ended",
      );
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  } finally {
    for (const worker of workers) {
      worker.kill();
      await once(worker, "exit");
    }
    await Promise.all(queues.map((queue) => queue.close()));
    connection.disconnect();
  }
  const { statuses, begin, end } = provider.seen;
  assert.deepEqual(statuses, Array(JOBS).fill(200));
  const took = end - begin;
  t.diagnostic(`${JOBS} jobs in ${(took / 1000).toFixed(1)} s; ${((JOBS - 1) * INTERVAL_MS) / 1000} s is perfect`);
  // The first and the last request may have had different latencies.
  assert.ok(took >= (JOBS - 1) * INTERVAL_MS - INTERVAL_MS, `${took}`);
  const interactive = provider.seen.queues.slice(0, 100).filter((queue) => queue === "interactive").length;
  assert.ok(interactive >= 65 && interactive <= 85, `${interactive} of the first 100`);
});
