import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { type TestContext, test } from "node:test";
import express from "express";
import fastify from "fastify";
import { rateLimit as expressLimit } from "../src/express.js";
import { rateLimit as fastifyLimit } from "../src/fastify.js";
import { rateLimit as fetchLimit } from "../src/fetch.js";
import {
  bodyField,
  type CheckError,
  Client,
  clientIp,
  descriptorsOf,
  header,
  type KeyRequest,
  type RateLimitOptions,
  user,
} from "../src/index.js";
import { freePort, metric, PATIENT, redis, redisCommand, serve, until } from "./server.js";

const LIMITS = `
domain: api
defaults: {algorithm: sliding_window_log}
descriptors:
  - {key: remote_address, rate_limit: {name: per_address, unit: hour, requests_per_unit: 2}}
  - {key: email, rate_limit: {window: 15m, requests_per_unit: 1}}
  - {key: user, rate_limit: {window: 15m, requests_per_unit: 1}}
`;
/** A domain without rules, for limits in the call. */
const EMPTY = "domain: app\ndefaults: {algorithm: sliding_window_log}";

const HEADERS = ["--response-headers", "ratelimit-draft-11"];

/** What a test sends to the application, and what it reads of the answer. */
type Send = (headers?: Record<string, string>, body?: unknown) => Promise<Response>;

/** Applications with one handler, `POST /`, behind the middleware. */
const FRAMEWORKS: Record<string, (t: TestContext, options: RateLimitOptions<KeyRequest>) => Promise<Send>> = {
  async express(t, options) {
    // Elsewhere it prints errors.
    const app = express().set("env", "test");
    app.use(express.json(), expressLimit(options));
    app.post("/", (_, response) => void response.set("x-handled", "yes").send("handled"));
    const server = app.listen(0, "127.0.0.1");
    t.after(() => server.close());
    await once(server, "listening");
    return sender(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  },
  async fastify(t, options) {
    const app = fastify();
    app.addHook("preHandler", fastifyLimit(options));
    app.post("/", (_, reply) => reply.header("x-handled", "yes").send("handled"));
    t.after(() => app.close());
    return sender(await app.listen({ port: 0, host: "127.0.0.1" }));
  },
  async fetch(_, options) {
    const handle = fetchLimit(options)((_request, status: number) => {
      return new Response("handled", { status, headers: { "x-handled": "yes" } });
    });
    return (headers = {}, body = {}) => {
      const init = { method: "POST", headers, body: JSON.stringify(body) };
      return handle(new Request("http://localhost/", init), 200);
    };
  },
};

function sender(url: string): Send {
  return (headers = {}, body = {}) => {
    return fetch(url, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: JSON.stringify(body),
    });
  };
}

for (const [framework, application] of Object.entries(FRAMEWORKS)) {
  test(`${framework}: the request beyond the limit gets 429`, async (t) => {
    const client = new Client((await serve(t, LIMITS, HEADERS)).grpc, PATIENT);
    const descriptors = descriptorsOf<KeyRequest>({ remote_address: clientIp({ trustedProxies: 1 }) });
    const send = await application(t, { client, domain: "api", descriptors });
    const from = (address: string) => send({ "x-forwarded-for": `1.2.3.4, ${address}` });
    for (const remaining of [1, 0]) {
      const response = await from("192.0.2.1");
      assert.equal(response.status, 200);
      assert.match(response.headers.get("ratelimit") ?? "", new RegExp(`"per_address";r=${remaining};`));
      assert.equal(response.headers.get("x-handled"), "yes");
      assert.equal(await response.text(), "handled");
    }
    const refused = await from("192.0.2.1");
    assert.equal(refused.status, 429);
    assert.equal(refused.headers.get("content-type"), "application/problem+json");
    assert.equal(refused.headers.get("x-handled"), null);
    const seconds = Number(refused.headers.get("retry-after"));
    assert.ok(seconds > 3_500 && seconds <= 3_600, `${seconds}`);
    assert.deepEqual(await refused.json(), {
      type: "about:blank",
      title: "Too Many Requests",
      status: 429,
      detail: "The rate limit is exceeded.",
      retryAfter: seconds,
    });
    assert.equal((await from("192.0.2.2")).status, 200);
  });

  test(`${framework}: keys come from body, header and user`, async (t) => {
    const client = new Client((await serve(t, LIMITS)).grpc, PATIENT);
    const send = await application(t, {
      client,
      domain: "api",
      descriptors: descriptorsOf<KeyRequest>({ email: bodyField("email") }, { user: header("x-user") }),
    });
    const statuses = async (times: number, ...request: Parameters<Send>) => {
      const responses = [];
      for (let at = 0; at < times; at++) {
        responses.push((await send(...request)).status);
      }
      return responses;
    };
    assert.deepEqual(await statuses(2, {}, { email: "ann@a.test" }), [200, 429]);
    assert.deepEqual(await statuses(2, { "x-user": "ann" }, { email: "bob@a.test" }), [200, 429]);
    // A refusal by one limit is charged to none.
    assert.deepEqual(await statuses(2, { "x-user": "cat" }, { email: "ann@a.test" }), [429, 429]);
    assert.deepEqual(await statuses(1, { "x-user": "cat" }, { email: "cat@a.test" }), [200]);
    // Without the field there is one counter, without the header none.
    assert.deepEqual(await statuses(2), [200, 429]);
    const byUser = await application(t, {
      client,
      domain: "api",
      descriptors: descriptorsOf({ user: header("x-user") }),
    });
    assert.deepEqual([(await byUser()).status, (await byUser()).status], [200, 200]);
  });

  test(`${framework}: options skip, charge more and answer otherwise`, async (t) => {
    const client = new Client((await serve(t, LIMITS)).grpc, PATIENT);
    const send = await application(t, {
      client,
      domain: "api",
      descriptors: descriptorsOf<KeyRequest>({ remote_address: "all" }),
      hits: () => 2,
      skip: (request) => header("x-skip")(request) !== undefined,
      onLimited: (request, verdict) =>
        header("x-json")(request)
          ? { body: JSON.stringify({ refused: !verdict.allowed }), contentType: "application/json" }
          : undefined,
    });
    assert.equal((await send()).status, 200);
    assert.equal((await send()).headers.get("content-type"), "application/problem+json");
    const own = await send({ "x-json": "1" });
    assert.deepEqual(
      [own.status, own.headers.get("content-type"), await own.json()],
      [429, "application/json", { refused: true }],
    );
    assert.ok(own.headers.has("retry-after"));
    assert.equal((await send({ "x-skip": "1" })).status, 200);
  });

  test(`${framework}: the failure mode decides without a verdict`, async (t) => {
    const client = new Client(`127.0.0.1:${await freePort()}`, PATIENT);
    const failures: CheckError[] = [];
    const options: RateLimitOptions<KeyRequest> = {
      client,
      domain: "api",
      descriptors: descriptorsOf({ remote_address: "all" }),
      onFailure: (_, error) => void failures.push(error),
    };
    assert.equal((await (await application(t, options))()).status, 200);
    const closed = await (await application(t, { ...options, failureMode: "closed" }))();
    assert.equal(closed.status, 503);
    assert.deepEqual(await closed.json(), {
      type: "about:blank",
      title: "Service Unavailable",
      status: 503,
      detail: "The rate limit service does not answer.",
    });
    assert.deepEqual(
      failures.map(({ kind }) => kind),
      ["unavailable", "unavailable"],
    );
  });

  test(`${framework}: a limit in the call needs only a domain`, async (t) => {
    const client = new Client((await serve(t, EMPTY)).grpc, PATIENT);
    const keyFn = header("x-api-key");
    for (const [window, seconds] of [
      ["15m", 900],
      ["90s", 90],
    ] as const) {
      const send = await application(t, { client, window, limit: 2, keyFn });
      const ann = { "x-api-key": "ann" };
      assert.equal((await send(ann)).status, 200);
      assert.equal((await send(ann)).status, 200);
      const refused = await send(ann);
      assert.equal(refused.status, 429);
      const retryAfter = Number(refused.headers.get("retry-after"));
      assert.ok(retryAfter > seconds - 30 && retryAfter <= seconds, `${retryAfter}`);
      assert.equal((await send({ "x-api-key": "bob" })).status, 200);
      assert.equal((await send()).status, 200);
    }
    // Limits of one name share counters.
    const named = { client, window: "1h", limit: 1, keyFn: () => "ann" };
    const [first, second] = [
      await application(t, { ...named, name: "a" }),
      await application(t, { ...named, name: "b" }),
    ];
    assert.deepEqual([(await first()).status, (await second()).status, (await first()).status], [200, 200, 429]);
  });

  test(`${framework}: a limit in the call never passes silently in an unknown domain`, async (t) => {
    const client = new Client((await serve(t, EMPTY)).grpc, PATIENT);
    const kinds: string[] = [];
    const onFailure = (_: KeyRequest, error: CheckError) => void kinds.push(error.kind);
    const options = { client, domain: "other", window: "15m", limit: 2, keyFn: () => "ann", onFailure };
    assert.equal((await (await application(t, { ...options, failureMode: "closed" }))()).status, 503);
    assert.equal((await (await application(t, options))()).status, 200);
    assert.deepEqual(kinds, ["override_not_applied", "override_not_applied"]);
  });

  test(`${framework}: a shed request is refused with failure mode open`, async (t) => {
    const port = await redis(t);
    const flags = ["--store", `redis://127.0.0.1:${port}`, "--decision-timeout", "5s", "--max-in-flight", "1"];
    const server = await serve(t, EMPTY, flags);
    const client = new Client(server.grpc, PATIENT);
    const failures: CheckError[] = [];
    const send = await application(t, {
      client,
      window: "15m",
      limit: 10,
      keyFn: () => "ann",
      failureMode: "open",
      onFailure: (_, error) => void failures.push(error),
    });
    await until(async () => (await send()).status === 200);
    await redisCommand(port, "CLIENT", "PAUSE", "60000", "WRITE");
    const held = send();
    await until(async () => (await metric(server, "sluicegate_requests_in_flight")) === 1);
    assert.equal((await send()).status, 429);
    await redisCommand(port, "CLIENT", "UNPAUSE");
    assert.equal((await held).status, 200);
    assert.deepEqual(failures, []);
  });
}

test("the call of three options asks SLUICEGATE_ENDPOINT", async (t) => {
  const { grpc } = await serve(t, EMPTY);
  process.env["SLUICEGATE_ENDPOINT"] = grpc;
  t.after(() => delete process.env["SLUICEGATE_ENDPOINT"]);
  const app = express().use(expressLimit({ window: "15m", limit: 1, keyFn: (request) => request.ip }));
  app.get("/", (_, response) => void response.send("handled"));
  const server = app.listen(0, "127.0.0.1");
  t.after(() => server.close());
  await once(server, "listening");
  const get = async () => (await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`)).status;
  assert.deepEqual([await get(), await get()], [200, 429]);
});

test("options that are not valid fail at the start", () => {
  const client = new Client("127.0.0.1:1");
  const keyFn = () => "ann";
  assert.throws(() => expressLimit({ client, window: "15 minutes", limit: 5, keyFn }), RangeError);
  assert.throws(() => expressLimit({ client, window: "15m", limit: -1, keyFn }), RangeError);
  assert.throws(() => clientIp({ trustedProxies: -1 }), RangeError);
});

test("errors of the application's functions go to the framework", async (t) => {
  const client = new Client("127.0.0.1:1");
  const descriptors = () => {
    throw new Error("mistake");
  };
  for (const framework of ["express", "fastify"]) {
    const send = await FRAMEWORKS[framework]?.(t, { client, domain: "api", descriptors });
    assert.equal((await send?.())?.status, 500);
  }
  await assert.rejects(
    async () => (await FRAMEWORKS["fetch"]?.(t, { client, domain: "api", descriptors }))?.(),
    /mistake/,
  );
});

test("the client's address is the one that the last trusted proxy wrote", () => {
  const request = (forwarded: string | undefined, remoteAddress: string | undefined): KeyRequest => {
    return { headers: forwarded === undefined ? {} : { "x-forwarded-for": forwarded }, socket: { remoteAddress } };
  };
  const peer = "::ffff:10.0.0.1";
  for (const [trustedProxies, forwarded, expected] of [
    [0, "192.0.2.1", "10.0.0.1"],
    [1, "192.0.2.1", "192.0.2.1"],
    [1, "spoofed, 192.0.2.1", "192.0.2.1"],
    [2, "192.0.2.1 , 192.0.2.2", "192.0.2.1"],
    [2, "192.0.2.2", "10.0.0.1"],
    [1, "192.0.2.1, nonsense", "10.0.0.1"],
    [1, "192.0.2.1:443", "10.0.0.1"],
    [1, "", "10.0.0.1"],
    [1, undefined, "10.0.0.1"],
    [1, "2001:DB8::1", "2001:db8::1"],
  ] as const) {
    assert.equal(clientIp({ trustedProxies })(request(forwarded, peer)), expected, `${trustedProxies} ${forwarded}`);
  }
  assert.equal(clientIp()(request(undefined, undefined)), "unknown");
  const fetched = new Request("http://localhost/", { headers: { "x-forwarded-for": "192.0.2.1" } });
  assert.equal(clientIp({ trustedProxies: 1 })(fetched), "192.0.2.1");
  assert.equal(clientIp({ peer: () => "192.0.2.9" })(fetched), "192.0.2.9");
});

test("key functions return nothing where the request has nothing", async () => {
  const request = (body: string) => new Request("http://localhost/", { method: "POST", body });
  const email = bodyField("email");
  assert.equal(await email(request('{"email": "ann@a.test"}')), "ann@a.test");
  for (const body of ["", "no", "null", "[]", "{}", '{"email": null}', '{"email": {}}']) {
    assert.equal(await email(request(body)), "", body);
  }
  assert.equal(await email(request(JSON.stringify({ email: "ann@a.test", rest: "x".repeat(64 * 1024) }))), "");
  assert.equal(await email({ headers: {}, body: { email: 7 } }), "7");
  assert.equal(await bodyField("toString")({ headers: {}, body: {} }), "");
  assert.equal(header("X-Api-Key")({ headers: { "x-api-key": "k" } }), "k");
  assert.equal(header("x-api-key")({ headers: { "x-api-key": "" } }), undefined);
  assert.equal(user()({ headers: {}, user: { id: 7 } }), "7");
  assert.equal(user("sub")({ headers: {}, user: { sub: "ann" } }), "ann");
  assert.equal(user()({ headers: {}, user: "ann" }), "ann");
  assert.equal(user()({ headers: {} }), undefined);
});

test("a handler still reads the body that a key came from", async (t) => {
  const client = new Client((await serve(t, LIMITS)).grpc, PATIENT);
  const limited = fetchLimit({ client, domain: "api", descriptors: descriptorsOf({ email: bodyField("email") }) });
  const body = JSON.stringify({ email: "ann@a.test", password: "secret" });
  const response = await limited(async (request) => Response.json(await request.json()))(
    new Request("http://localhost/", { method: "POST", body }),
  );
  assert.equal(await response.text(), body);
});
