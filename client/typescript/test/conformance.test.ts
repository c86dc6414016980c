import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { type DescMessage, fromJson, type JsonValue, toBinary } from "@bufbuild/protobuf";
import { Server, ServerCredentials, type ServiceDefinition } from "@grpc/grpc-js";
import { type Check, Client, limitPerWindow } from "../src/index.js";
import { rateLimit } from "../src/fetch.js";
import { RateLimitResponseSchema } from "../src/gen/sluicegate/client/v1/rls_pb.js";

interface Vector {
  readonly name: string;
  readonly overrides: readonly boolean[];
  readonly answer: JsonValue;
  readonly verdict: { readonly allowed: boolean } | { readonly error: string };
  readonly retryAfterMs: number | null;
  readonly http: {
    readonly status: number;
    readonly headers: Readonly<Record<string, string | null>>;
    readonly body: string | null;
  };
}

const VECTORS: readonly Vector[] = JSON.parse(readFileSync("../conformance/answers.json", "utf8"));

/** A service that gives each answer under the vector's name as domain. */
async function service(): Promise<{ endpoint: string; stop: () => void }> {
  const answers = new Map(VECTORS.map(({ name, answer }) => [name, encoded(RateLimitResponseSchema, answer)]));
  const definition: ServiceDefinition = {
    shouldRateLimit: {
      path: "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
      requestStream: false,
      responseStream: false,
      requestSerialize: (bytes: Buffer) => bytes,
      requestDeserialize: (bytes: Buffer) => bytes,
      responseSerialize: (bytes: Buffer) => bytes,
      responseDeserialize: (bytes: Buffer) => bytes,
    },
  };
  const server = new Server();
  server.addService(definition, {
    shouldRateLimit: (call: { request: Buffer }, callback: (error: null, answer: Buffer | undefined) => void) => {
      // The domain is the first field: its tag, its length and its bytes.
      const [, length = 0] = call.request;
      callback(null, answers.get(call.request.toString("utf8", 2, 2 + length)));
    },
  });
  const port = await new Promise<number>((resolve, reject) => {
    const bound = (error: Error | null, at: number) => (error ? reject(error) : resolve(at));
    server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), bound);
  });
  return { endpoint: `127.0.0.1:${port}`, stop: () => server.forceShutdown() };
}

function encoded(schema: DescMessage, json: JsonValue): Buffer {
  return Buffer.from(toBinary(schema, fromJson(schema, json)));
}

test("answers give the verdicts that all clients give", async (t) => {
  const { endpoint, stop } = await service();
  const client = new Client(endpoint, { timeoutMs: 5_000 });
  t.after(() => (client.close(), stop()));
  assert.ok(VECTORS.length >= 31);
  for (const { name, overrides, verdict, retryAfterMs, http } of VECTORS) {
    await t.test(name, async () => {
      const limit = limitPerWindow(5, "15m");
      const descriptors = overrides.map((isOverride) => ({ entries: { key: "a" }, ...(isOverride && { limit }) }));
      const check: Check = { domain: name, descriptors };
      if ("error" in verdict) {
        await assert.rejects(client.check(check), { name: "CheckError", kind: verdict.error });
      } else {
        const given = await client.check(check);
        assert.equal(given.allowed, verdict.allowed);
        assert.equal(given.retryAfterMs ?? null, retryAfterMs);
      }
      const limited = rateLimit({ client, domain: name, descriptors: () => descriptors, failureMode: "closed" });
      const response = await limited(() => new Response("handled"))(new Request("http://localhost/"));
      assert.equal(response.status, http.status);
      for (const [header, value] of Object.entries(http.headers)) {
        assert.equal(response.headers.get(header), value, header);
      }
      const body = await response.text();
      if (http.body !== null) {
        const isJson = response.headers.get("content-type")?.includes("json");
        assert.deepEqual(isJson ? JSON.parse(body) : body, isJson ? JSON.parse(http.body) : http.body);
      }
    });
  }
});
