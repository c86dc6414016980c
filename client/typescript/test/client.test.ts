import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { type Check, CheckError, Client, limitPerWindow } from "../src/index.js";
import { folder, freePort, metric, PATIENT, redis, redisCommand, serve, until } from "./server.js";

const LIMITS = `
domain: api
defaults: {algorithm: sliding_window_log}
descriptors:
  - key: user
    rate_limit: {name: per_user, unit: hour, requests_per_unit: 3}
`;

/** A domain without rules, for limits of requests. */
const EMPTY = "domain: app\ndefaults: {algorithm: sliding_window_log}";

function ann(hits?: number): Check {
  return { domain: "api", descriptors: [{ entries: { user: "ann" } }], hits };
}

test("a check is allowed up to the limit", async (t) => {
  const client = new Client((await serve(t, LIMITS, ["--response-headers", "ratelimit-draft-11"])).grpc, PATIENT);
  const first = await client.check(ann());
  assert.equal(first.allowed, true);
  const [status] = first.statuses;
  assert.deepEqual(status?.limit, { name: "per_user", requestsPerUnit: 3, unit: "hour", unitMultiplier: 1 });
  assert.deepEqual([status?.code, status?.remaining], ["ok", 2]);
  assert.equal((await client.check(ann(2))).allowed, true);
  const refused = await client.check(ann());
  assert.equal(refused.allowed, false);
  assert.equal(refused.statuses[0]?.code, "over_limit");
  assert.ok(refused.retryAfterMs !== undefined && refused.retryAfterMs > 0 && refused.retryAfterMs <= 3_600_000);
  const headers = new Map(refused.responseHeaders.map(({ name, value }) => [name.toLowerCase(), value]));
  assert.match(headers.get("ratelimit") ?? "", /"per_user";r=0;t=\d+/);
  client.close();
});

test("a peek charges nothing, a refund returns hits", async (t) => {
  const client = new Client((await serve(t, LIMITS)).grpc, PATIENT);
  const remaining = async () => (await client.peek(ann())).statuses[0]?.remaining;
  assert.equal(await remaining(), 3);
  await client.check(ann(3));
  assert.equal(await remaining(), 0);
  assert.equal((await client.peek(ann())).allowed, false);
  await client.refund(ann(), 2);
  assert.equal(await remaining(), 2);
  await client.refund(ann(1));
  assert.equal(await remaining(), 3);
  // Also of one descriptor beside another.
  const both = [{ entries: [["user", "ann"]] as const, hits: 2 }, { entries: { user: "bob" } }];
  const { statuses } = await client.check({ domain: "api", descriptors: both });
  assert.deepEqual(
    statuses.map((status) => status.remaining),
    [1, 2],
  );
});

test("windows of any length are sent with the request", async (t) => {
  const client = new Client((await serve(t, EMPTY)).grpc, PATIENT);
  for (const [window, unit, unitMultiplier] of [
    ["15m", "minute", 15],
    ["90s", "second", 90],
    [3600, "hour", 1],
  ] as const) {
    const limit = limitPerWindow(2, window);
    const check = { domain: "app", descriptors: [{ entries: { key: "ann" }, limit }] };
    const first = await client.check(check);
    assert.deepEqual(first.statuses[0]?.limit, { name: "", requestsPerUnit: 2, unit, unitMultiplier });
    assert.equal((await client.check(check)).allowed, true);
    const refused = await client.check(check);
    assert.equal(refused.allowed, false);
    assert.ok((refused.retryAfterMs ?? Number.POSITIVE_INFINITY) <= 3_600_000);
  }
});

test("an override in an unknown domain is an error", async (t) => {
  const client = new Client((await serve(t, EMPTY)).grpc, PATIENT);
  const limit = limitPerWindow(2, "15m");
  const check = { domain: "other", descriptors: [{ entries: { key: "ann" }, limit }] };
  await assert.rejects(client.check(check), { name: "CheckError", kind: "override_not_applied", code: undefined });
});

test("failures have a kind", async (t) => {
  const nowhere = new Client(`127.0.0.1:${await freePort()}`, PATIENT);
  await assert.rejects(nowhere.check(ann()), { name: "CheckError", kind: "unavailable", code: 14 });
  const silent = createServer().listen(0, "127.0.0.1");
  silent.on("connection", (socket) => t.after(() => socket.destroy()));
  t.after(() => silent.close());
  await once(silent, "listening");
  const address = silent.address();
  assert.ok(address && typeof address === "object");
  const waiting = new Client(`127.0.0.1:${address.port}`);
  await assert.rejects(waiting.check(ann(), { timeoutMs: 30 }), { kind: "deadline_exceeded", code: 4 });
  waiting.close();
  const server = await serve(t, LIMITS);
  const client = new Client(server.grpc, PATIENT);
  await assert.rejects(client.check({ domain: "", descriptors: [{ entries: {} }] }), { kind: "other", code: 3 });
});

test("a closed client fails", async () => {
  const client = new Client("127.0.0.1:1");
  client.close();
  await assert.rejects(client.check(ann()), { name: "CheckError", kind: "other", message: "The client is closed." });
});

test("checks that are not valid are rejected before they are sent", async () => {
  const client = new Client("127.0.0.1:1");
  const entries = { user: "ann" };
  const limit = limitPerWindow(1, "1s");
  for (const [descriptors, hits] of [
    [[]],
    [[{ entries }], -1],
    [[{ entries }], 1.5],
    [[{ entries }], Number.NaN],
    [[{ entries, hits: 1, refund: 1 }]],
    [[{ entries, refund: -1 }]],
    [[{ entries, limit: { ...limit, requestsPerUnit: 2 ** 32 } }]],
    [[{ entries, limit: { ...limit, unitMultiplier: -1 } }]],
  ] as const) {
    await assert.rejects(client.check({ domain: "api", descriptors, hits }), (error) => !(error instanceof CheckError));
  }
  for (const window of ["", "15", "1.5m", "0s", "367d", "1w", 0, 0.5, Number.NaN]) {
    assert.throws(() => limitPerWindow(1, window), RangeError, String(window));
  }
  assert.deepEqual(limitPerWindow(1, "1h 30m"), { requestsPerUnit: 1, unit: "minute", unitMultiplier: 90 });
  assert.throws(() => new Client("127.0.0.1:1", { timeoutMs: 0 }), RangeError);
  await assert.rejects(client.check({ domain: "api", descriptors: [{ entries }] }, { timeoutMs: -1 }), RangeError);
  assert.throws(() => new Client("http://127.0.0.1:8081"), TypeError);
});

test("a unix socket is an endpoint", async (t) => {
  const endpoint = `unix:${join(await folder(t), "grpc.sock")}`;
  await serve(t, LIMITS, ["--grpc-listen", endpoint]);
  assert.equal((await new Client(endpoint, PATIENT).check(ann())).allowed, true);
});

test("TLS checks the server and shows a certificate of the client", async (t) => {
  const path = await folder(t);
  const openssl = (...flags: string[]) => promisify(execFile)("openssl", flags, { cwd: path });
  const leaf = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=DNS:limits.test"];
  const pair = (name: string) => [
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-nodes",
    "-keyout",
    `${name}.key`,
  ];
  await openssl("req", "-x509", ...pair("ca"), "-subj", "/CN=ca", "-days", "2", "-out", "ca.pem");
  for (const name of ["server", "client"]) {
    const issuer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2"];
    await openssl("req", "-x509", ...pair(name), "-subj", `/CN=${name}`, ...leaf, ...issuer, "-out", `${name}.pem`);
  }
  const file = (name: string) => join(path, name);
  const flags = ["--grpc-tls-cert", file("server.pem"), "--grpc-tls-key", file("server.key")];
  const { grpc } = await serve(t, LIMITS, [...flags, "--grpc-tls-client-ca", file("ca.pem")]);
  const read = (name: string) => readFile(file(name));
  const tls = { ca: await read("ca.pem"), serverName: "limits.test" };
  const certificate = { cert: await read("client.pem"), key: await read("client.key") };
  const client = new Client(grpc, { tls: { ...tls, ...certificate }, ...PATIENT });
  assert.equal((await client.check(ann())).allowed, true);
  for (const wrong of [
    tls,
    { ...tls, ...certificate, serverName: "other.test" },
    { ...tls, ...certificate, ca: undefined },
  ]) {
    await assert.rejects(new Client(grpc, { tls: wrong, ...PATIENT }).check(ann()), { kind: "unavailable" });
  }
  await assert.rejects(new Client(grpc.replace("127.0.0.1", "localhost"), { tls: true, ...PATIENT }).check(ann()), {
    kind: "unavailable",
  });
});

test("health is reported", async (t) => {
  const client = new Client((await serve(t, LIMITS)).grpc, PATIENT);
  assert.equal(await client.health(), "serving");
  assert.equal(await client.health("envoy.service.ratelimit.v3.RateLimitService"), "serving");
  await assert.rejects(client.health("none"), { kind: "other", code: 5 });
});

test("the client connects again after the server restarts", async (t) => {
  const endpoint = `unix:${join(await folder(t), "grpc.sock")}`;
  const first = await serve(t, LIMITS, ["--grpc-listen", endpoint]);
  const client = new Client(endpoint, PATIENT);
  await client.check(ann());
  await first.stop();
  await assert.rejects(client.check(ann()), { kind: "unavailable" });
  await serve(t, LIMITS, ["--grpc-listen", endpoint]);
  await until(async () => (await client.check(ann())).allowed);
});

test("a request that the server sheds is refused", async (t) => {
  const port = await redis(t);
  const flags = ["--store", `redis://127.0.0.1:${port}`, "--decision-timeout", "5s", "--max-in-flight", "1"];
  const server = await serve(t, "domain: app", flags);
  const client = new Client(server.grpc, PATIENT);
  const descriptor = { entries: { key: "ann" }, limit: limitPerWindow(10, "15m") };
  const check = { domain: "app", descriptors: [descriptor] };
  await until(async () => (await client.check(check)).allowed);
  await redisCommand(port, "CLIENT", "PAUSE", "60000", "WRITE");
  const held = client.check(check);
  await until(async () => (await metric(server, "sluicegate_requests_in_flight")) === 1);
  const shed = await client.check(check);
  assert.equal(shed.allowed, false);
  assert.equal(shed.statuses[0]?.limit, undefined);
  assert.equal(shed.retryAfterMs, undefined);
  assert.equal(await metric(server, "sluicegate_requests_shed_total"), 1);
  await redisCommand(port, "CLIENT", "UNPAUSE");
  assert.equal((await held).allowed, true);
});
