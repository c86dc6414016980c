import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { render, type Usage } from "./bars.js";

// The harness of the client's tests, which has no types here.
const harness = "../../../../client/typescript/build/test/server.js";
const { freePort, serve, until } = await import(harness);

interface Portal {
  readonly url: string;
  readonly log: () => string;
  readonly hit: (entries: [string, string][]) => Promise<number>;
}

/** Starts the portal beside a server with its limits. */
async function portal(t: TestContext, token = "portal-token-of-acme"): Promise<Portal> {
  const port = await freePort();
  const limits = readFileSync("limits/portal.yaml", "utf8");
  const flags = ["--usage-listen", `127.0.0.1:${port}`, "--usage-tenants-file", "tenants.json"];
  const server = await serve(t, limits, flags);
  const environment = { USAGE_URL: `http://127.0.0.1:${port}/usage`, USAGE_TOKEN: token, PORT: "0" };
  const app = spawn(process.execPath, ["build/server.js"], {
    env: { ...process.env, ...environment },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let log = "";
  app.stderr.on("data", (text) => (log += text));
  t.after(async () => {
    app.kill();
    await once(app, "exit");
  });
  const [line] = await once(createInterface({ input: app.stdout }), "line");
  const hit = async (entries: [string, string][]) => {
    const descriptor = { entries: entries.map(([key, value]) => ({ key, value })) };
    const body = JSON.stringify({ domain: "portal", descriptors: [descriptor] });
    return (await fetch(`http://${server.http}/json`, { method: "POST", body })).status;
  };
  return { url: line.replace("listening on ", ""), log: () => log, hit };
}

const remaining = (usage: Usage) =>
  usage.descriptors.map(({ limits }) => limits.map((limit) => [limit.name, limit.remaining]));

test("the page has the limits of its tenant", async (t) => {
  const { url, hit } = await portal(t);
  for (const [path, type] of [
    ["/", "text/html"],
    ["/page.js", "text/javascript"],
    ["/bars.js", "text/javascript"],
  ]) {
    const response = await fetch(url + path);
    assert.equal(response.status, 200);
    assert.ok(response.headers.get("content-type")?.startsWith(type!));
    assert.ok(!(await response.text()).includes("portal-token"));
  }
  assert.equal((await fetch(`${url}/../tenants.json`)).status, 404);
  for (let at = 0; at < 6; at++) {
    assert.equal(await hit([["tenant", "acme"], ["report", "monthly"]]), at < 5 ? 200 : 429);
  }
  await hit([["tenant", "acme"], ["user", "ann"]]);
  await hit([["tenant", "globex"], ["user", "ann"]]);
  const usage = (await (await fetch(`${url}/limits.json`)).json()) as Usage;
  assert.deepEqual(remaining(usage), [
    [["requests", 1000]],
    [["burst", 9], ["hourly", 199]],
    [["burst", 10], ["hourly", 200]],
    [["reports", 0]],
  ]);
  const html = render(usage);
  assert.equal(html.split('role="meter"').length - 1, 6);
  assert.match(html, /<h2>tenant acme · report monthly<\/h2><div class="limit refused">.*width: 100%.*0 of 5 left/);
  assert.match(html, /next in \d+ (h|min|s)/);
  // A later answer has later numbers, and asking charges nothing.
  await hit([["tenant", "acme"], ["user", "bob"]]);
  await until(async () => {
    const later = (await (await fetch(`${url}/limits.json`)).json()) as Usage;
    return remaining(later)[2]![1]![1] === 199;
  });
});

test("browsers share the requests of the tenant", async (t) => {
  const { url, log } = await portal(t);
  for (let at = 0; at < 5; at++) {
    const responses = await Promise.all(Array.from({ length: 20 }, () => fetch(`${url}/limits.json`)));
    assert.ok(responses.every((response) => response.status === 200), log());
    await sleep(20);
  }
});

test("without usage the page gets no details", async (t) => {
  const { url, log } = await portal(t, "another-token");
  const response = await fetch(`${url}/limits.json`);
  assert.deepEqual([response.status, await response.text()], [503, "{}"]);
  assert.match(log(), /usage: 401/);
  assert.ok(!log().includes("another-token"));
});

test("values of users do not become HTML", () => {
  const limit = { requests_per_unit: 0, unit: "day", unit_multiplier: 2, capacity: 0, used: 0, remaining: 0 };
  const more = { reset_seconds: 200_000, refused: true, shadow_mode: true };
  const html = render({
    descriptors: [
      { entries: [{ key: "user", value: '<img onerror="x">' }], unlimited: false, limits: [{ ...limit, ...more }] },
      { entries: [], unlimited: true, limits: [] },
      { entries: [], unlimited: false, limits: [] },
    ],
  });
  assert.ok(!html.includes("<img"), html);
  assert.match(html, /user &#60;img onerror=&#34;x&#34;&#62;/);
  assert.match(html, /0 of 0 left \(0 per 2 days\), resets in 3 d/);
  assert.match(html, /unlimited.*no limit/);
});
