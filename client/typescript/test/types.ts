/** What compiles and what does not. Never run. */
import express from "express";
import { rateLimit } from "../src/express.js";
import { rateLimit as fetchLimit } from "../src/fetch.js";
import { Client, clientIp, descriptorsOf, header, Pacer, user } from "../src/index.js";

const app = express();
app.use(rateLimit({ window: "15m", limit: 100, keyFn: (request) => request.ip }));
app.use(
  rateLimit({
    domain: "api",
    descriptors: (request) => [{ entries: { remote_address: request.ip ?? "", path: request.path } }],
    skip: (request) => request.path === "/health",
    onLimited: (request, verdict) => ({ body: `${request.path} ${verdict.retryAfterMs}` }),
  }),
);
const keys = { remote_address: clientIp({ trustedProxies: 1 }), user: user(), tier: "free" };
app.use(rateLimit({ domain: "api", descriptors: descriptorsOf(keys) }));

const limited = fetchLimit({ window: 90, limit: 5, keyFn: header("x-api-key") });
export const GET = limited((request: Request, context: { id: string }) => new Response(request.url + context.id));

const check = { domain: "jobs", descriptors: [{ entries: [["provider", "mail"]] }] } as const;
const pacer = new Pacer(new Client(), check, { priorities: { high: 3, low: 1 } });
export const result: number = await pacer.run(() => 7, { priority: "high" });
// @ts-expect-error - there is no such priority
await pacer.run(() => 7, { priority: "none" });

// @ts-expect-error - limits are in the server or in the call
rateLimit({ domain: "api", descriptors: () => [], window: "15m", limit: 1, keyFn: () => "ann" });
// @ts-expect-error - a limit in the call needs a key
rateLimit({ window: "15m", limit: 1 });
// @ts-expect-error - limits in the server need a domain
rateLimit({ descriptors: () => [] });
