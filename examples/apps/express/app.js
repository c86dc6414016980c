// A web application that limits its requests with Sluicegate: by address, by the e-mail of a login, and by the tier of an
// API key.
import { bodyField, Client, clientIp, descriptorsOf } from "@sluicegate/client";
import { rateLimit } from "@sluicegate/client/express";
import express from "express";

// Proxies in front that append to X-Forwarded-For.
const trustedProxies = Number(process.env.TRUSTED_PROXIES ?? 0);
const ip = clientIp({ trustedProxies });

// The customer of each API key. A real application looks it up where it has its customers.
const customers = new Map([
  ["key-of-ann", { id: "ann", tier: "free" }],
  ["key-of-bob", { id: "bob", tier: "pro" }],
  ["key-of-acme", { id: "acme", tier: "enterprise" }],
]);

// SLUICEGATE_ENDPOINT, or 127.0.0.1:8081.
const client = new Client(undefined, { timeoutMs: 500 });
const common = { client, domain: "express", onFailure: (_, error) => console.error(error.message) };

const perAddress = rateLimit({ ...common, descriptors: descriptorsOf({ remote_address: ip }) });
const perAccount = rateLimit({
  ...common,
  descriptors: descriptorsOf({ email: async (request) => (await bodyField("email")(request)).trim().toLowerCase() }),
  // Fails closed: without an answer, passwords could be guessed without a limit.
  failureMode: "closed",
});
const perKey = rateLimit({
  ...common,
  descriptors: descriptorsOf({ tier: (request) => request.customer.tier, api_key: (request) => request.customer.id }),
});
// The limit is in the call. It needs only the domain `app` of limits/app.yaml, which has no rules.
const perSearch = rateLimit({ client, window: "90s", limit: 3, keyFn: ip });

// Answers 401 without a valid API key. The tier comes from here and never from the client.
function authenticate(request, response, next) {
  request.customer = customers.get(request.get("x-api-key"));
  if (!request.customer) {
    response.status(401).send("an API key is needed\n");
    return;
  }
  next();
}

// Rejects every attempt, because the example has no accounts.
function login(request, response) {
  const hasEmail = typeof request.body?.email === "string";
  response.status(hasEmail ? 403 : 400).send(hasEmail ? "wrong e-mail or password\n" : "an e-mail is needed\n");
}

const app = express();
app.use(perAddress);
app.get("/", (_, response) => response.send("hello\n"));
app.post("/login", express.json({ limit: "64kb" }), perAccount, login);
app.get("/api", authenticate, perKey, (request, response) => response.send(`tier ${request.customer.tier}\n`));
app.get("/search", perSearch, (_, response) => response.send("found\n"));

const server = app.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
