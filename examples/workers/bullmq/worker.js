// Workers that send jobs to a provider no faster than it permits, whatever the number of worker processes. Users wait for
// jobs of the queue `interactive`, which gets three of four requests while both queues have jobs.
import { backoff, Client, Pacer, parseRetryAfter } from "@sluicegate/client";
import { Worker } from "bullmq";
import { Redis } from "ioredis";

const connection = new Redis(process.env.REDIS_URL ?? "redis://127.0.0.1:6379", { maxRetriesPerRequest: null });
const provider = process.env.PROVIDER_URL ?? "http://127.0.0.1:9000";

// Connects to SLUICEGATE_ENDPOINT, or 127.0.0.1:8081. The timeout is long, because no user waits for a worker's request.
const client = new Client(undefined, { timeoutMs: 1_000 });
const check = { domain: "bullmq", descriptors: [{ entries: { provider: "mail" } }] };
const pacer = new Pacer(client, check, {
  priorities: { interactive: 3, batch: 1 },
  onFailure: (error) => console.error(error.message),
});

async function send(job, priority) {
  for (let attempt = 0; ; attempt++) {
    const response = await pacer.run(() => fetch(provider, { method: "POST", body: JSON.stringify(job.data) }), {
      priority,
    });
    await response.body?.cancel();
    if (response.status !== 429) {
      return response.status;
    }
    // The provider refuses only if other programs use its limit too.
    await new Promise((resolve) =>
      setTimeout(resolve, backoff(parseRetryAfter(response.headers.get("retry-after")), attempt)),
    );
  }
}

// Node.js loads `fetch` with its first use, which takes so long that the first request would arrive together with the next.
// This loads it without a request.
await fetch("data:,");

// Jobs that wait for their turn occupy the worker: with room for some of each queue, neither has to wait for the other.
const workers = ["interactive", "batch"].map((queue) => {
  return new Worker(queue, (job) => send(job, queue), { connection, concurrency: 10 });
});

process.once("SIGTERM", async () => {
  await Promise.all(workers.map((worker) => worker.close()));
  connection.disconnect();
});
