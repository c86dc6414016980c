import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { freePort, serve } from "../../../client/typescript/build/test/server.js";

/** Starts the application beside a server with its limits; returns a function that sends requests. */
async function application(t, endpoint = undefined) {
  const limits = ["express", "app"].map((name) => readFileSync(`limits/${name}.yaml`, "utf8"));
  const env = { ...process.env, PORT: "0", TRUSTED_PROXIES: "1" };
  env.SLUICEGATE_ENDPOINT = endpoint ?? (await serve(t, limits)).grpc;
  const app = spawn(process.execPath, ["app.js"], { env, stdio: ["ignore", "pipe", "ignore"] });
  t.after(async () => {
    app.kill();
    await once(app, "exit");
  });
  const [line] = await once(createInterface({ input: app.stdout }), "line");
  const url = line.replace("listening on ", "");
  return (path, headers = {}, body = undefined) => {
    const json = body && { method: "POST", body: JSON.stringify(body) };
    return fetch(url + path, {
      ...json,
      headers: { "content-type": "application/json", "x-forwarded-for": "192.0.2.1", ...headers },
    });
  };
}

/** The status of each of so many equal requests. */
async function statuses(count, send) {
  const found = [];
  for (let at = 0; at < count; at++) {
    const response = await send(at);
    await response.arrayBuffer();
    found.push(response.status);
  }
  return found;
}

const times = (count, status) => Array(count).fill(status);

test("an address has 100 requests a minute", async (t) => {
  const send = await application(t);
  assert.deepEqual(await statuses(101, () => send("/")), [...times(100, 200), 429]);
  const refused = await send("/");
  assert.ok(Number(refused.headers.get("retry-after")) <= 60);
  assert.equal(refused.headers.get("content-type"), "application/problem+json");
  // What a client claims counts only behind the proxy.
  assert.equal((await send("/", { "x-forwarded-for": "192.0.2.7, 192.0.2.1" })).status, 429);
  assert.equal((await send("/", { "x-forwarded-for": "192.0.2.2" })).status, 200);
});

test("an e-mail has 5 logins in 15 minutes, from all addresses", async (t) => {
  const send = await application(t);
  const login = (email, at) => send("/login", { "x-forwarded-for": `192.0.2.${at}` }, { email, password: "guess" });
  assert.deepEqual(await statuses(6, (at) => login("eve@example.com", at)), [...times(5, 403), 429]);
  const refused = await login(" Eve@Example.com", 9);
  assert.equal(refused.status, 429);
  const retryAfter = Number(refused.headers.get("retry-after"));
  assert.ok(retryAfter > 800 && retryAfter <= 900, `${retryAfter}`);
  assert.equal((await login("ann@example.com", 9)).status, 403);
  assert.equal((await send("/login", {}, { password: "guess" })).status, 400);
});

test("a tier comes from the API key, and without one there is 401", async (t) => {
  const send = await application(t);
  // More than an address may request.
  const api = (key, at = 0) =>
    send("/api", { "x-api-key": key, "x-forwarded-for": `192.0.2.${at % 4}`, "x-tier": "enterprise" });
  assert.deepEqual(await statuses(11, (at) => api("key-of-ann", at)), [...times(10, 200), 429]);
  assert.deepEqual(await statuses(61, (at) => api("key-of-bob", at)), [...times(60, 200), 429]);
  assert.deepEqual(await statuses(120, (at) => api("key-of-acme", at)), times(120, 200));
  assert.equal((await send("/api")).status, 401);
  assert.equal((await api("forged")).status, 401);
});

test("a limit in the call needs only a domain without rules", async (t) => {
  const send = await application(t);
  assert.deepEqual(await statuses(4, () => send("/search")), [200, 200, 200, 429]);
  assert.ok(Number((await send("/search")).headers.get("retry-after")) <= 90);
  assert.equal((await send("/search", { "x-forwarded-for": "192.0.2.2" })).status, 200);
});

test("without an answer, logins are refused and other requests pass", async (t) => {
  const send = await application(t, `127.0.0.1:${await freePort()}`);
  assert.equal((await send("/")).status, 200);
  assert.equal((await send("/login", {}, { email: "eve@example.com" })).status, 503);
});
