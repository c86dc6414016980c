/**
 * Cost of the middleware: requests to an application with a bare handler and with the middleware, one after another over one
 * connection, in turns. Prints a table of microseconds.
 *
 *   npm run bench -- HOST:PORT      # a server with a domain `app`
 */
import { once } from "node:events";
import { Agent, request } from "node:http";
import type { AddressInfo } from "node:net";
import express from "express";
import fastify from "fastify";
import { rateLimit as expressLimit } from "../src/express.js";
import { rateLimit as fastifyLimit } from "../src/fastify.js";
import { rateLimit as fetchLimit } from "../src/fetch.js";
import { Client } from "../src/index.js";

const REQUESTS = 3_000;

const client = new Client(process.argv[2], { timeoutMs: 1_000 });
const options = { client, window: "1s", limit: 1_000_000, keyFn: () => "bench", failureMode: "closed" } as const;

/** Sends a request, and fails if the handler did not answer. */
type Send = () => Promise<void>;

async function expressApp(isLimited: boolean): Promise<Send> {
  const app = express();
  if (isLimited) {
    app.use(expressLimit(options));
  }
  app.get("/", (_, response) => void response.send("handled"));
  const server = app.listen(0, "127.0.0.1");
  await once(server, "listening");
  return sender((server.address() as AddressInfo).port);
}

async function fastifyApp(isLimited: boolean): Promise<Send> {
  const app = fastify();
  if (isLimited) {
    app.addHook("onRequest", fastifyLimit(options));
  }
  app.get("/", (_, reply) => reply.send("handled"));
  await app.listen({ port: 0, host: "127.0.0.1" });
  return sender((app.server.address() as AddressInfo).port);
}

/** Without HTTP: the handler is called. */
async function fetchHandler(isLimited: boolean): Promise<Send> {
  const bare = (_: Request) => new Response("handled");
  const handler = isLimited ? fetchLimit(options)(bare) : bare;
  return async () => expectHandled((await handler(new Request("http://localhost/"))).status);
}

function sender(port: number): Send {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  return async () => {
    const [response] = await once(request({ agent, port, host: "127.0.0.1" }).end(), "response");
    response.resume();
    await once(response, "end");
    expectHandled(response.statusCode);
  };
}

function expectHandled(status: number): void {
  if (status !== 200) {
    throw new Error(`The application answered ${status}.`);
  }
}

function quantile(sorted: readonly number[], share: number): string {
  return (1_000 * (sorted[Math.floor(sorted.length * share)] ?? 0)).toFixed(0);
}

await client.health();
console.log("| framework | handler | median µs | 99 % µs |\n|---|---|---|---|");
for (const [framework, start] of Object.entries({ Express: expressApp, Fastify: fastifyApp, fetch: fetchHandler })) {
  const senders = [await start(false), await start(true)] as const;
  const times: [number[], number[]] = [[], []];
  for (let turn = -500; turn < REQUESTS; turn++) {
    for (const at of [0, 1] as const) {
      const begin = performance.now();
      await senders[at]();
      if (turn >= 0) {
        times[at].push(performance.now() - begin);
      }
    }
  }
  for (const at of [0, 1] as const) {
    const sorted = times[at].sort((a, b) => a - b);
    const row = [framework, at === 0 ? "bare" : "limited", quantile(sorted, 0.5), quantile(sorted, 0.99)];
    console.log(`| ${row.join(" | ")} |`);
  }
}
process.exit();
