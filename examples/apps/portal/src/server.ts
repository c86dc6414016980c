// The backend of the page: holds the tenant's token, which browsers never see, and asks GET /usage with it.
import { readFile } from "node:fs/promises";
import { createServer, type ServerResponse } from "node:http";

const usageUrl = process.env.USAGE_URL ?? "http://127.0.0.1:8083/usage";
const token = process.env.USAGE_TOKEN;
if (!token) {
  throw new Error("USAGE_TOKEN must be the tenant's token.");
}

// What the page shows: the tenant itself, and descriptors below it. A real portal takes the user from its session.
const descriptors = ["", "user=ann", "user=bob", "report=monthly"];
const query = new URLSearchParams(descriptors.map((descriptor) => ["descriptor", descriptor]));

interface Answer {
  readonly status: number;
  readonly retryAfter: string | null;
  readonly body: string;
}

/** All browsers share one request a second, so that they do not use up the tenant's requests for usage. */
let shared: { readonly until: number; readonly answer: Promise<Answer> } | undefined;

function usage(): Promise<Answer> {
  if (!shared || shared.until < Date.now()) {
    shared = { until: Date.now() + 1_000, answer: ask() };
  }
  return shared.answer;
}

async function ask(): Promise<Answer> {
  try {
    const response = await fetch(`${usageUrl}?${query}`, {
      headers: { authorization: `Bearer ${token}` },
      signal: AbortSignal.timeout(3_000),
    });
    const body = await response.text();
    if (response.ok) {
      return { status: 200, retryAfter: null, body };
    }
    // The details are for the operator, not for the browser.
    console.error(`usage: ${response.status} ${body.trim()}`);
    return { status: 503, retryAfter: response.headers.get("retry-after"), body: "{}" };
  } catch (error) {
    console.error(`usage: ${error}`);
    return { status: 503, retryAfter: null, body: "{}" };
  }
}

async function limits(response: ServerResponse): Promise<void> {
  const { status, retryAfter, body } = await usage();
  const headers = { "content-type": "application/json", "cache-control": "no-store" };
  response.writeHead(status, retryAfter ? { ...headers, "retry-after": retryAfter } : headers).end(body);
}

// The only files that are served.
const files = new Map([
  ["/", { file: "../index.html", type: "text/html; charset=utf-8" }],
  ["/page.js", { file: "page.js", type: "text/javascript" }],
  ["/bars.js", { file: "bars.js", type: "text/javascript" }],
]);

const server = createServer(async (request, response) => {
  const path = (request.url ?? "").split("?", 1)[0]!;
  const found = files.get(path);
  if (request.method !== "GET") {
    response.writeHead(405).end();
  } else if (path === "/limits.json") {
    await limits(response);
  } else if (found) {
    const content = await readFile(new URL(found.file, import.meta.url));
    response.writeHead(200, { "content-type": found.type, "x-content-type-options": "nosniff" }).end(content);
  } else {
    response.writeHead(404).end();
  }
});

server.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => {
  const address = server.address();
  console.log(`listening on http://127.0.0.1:${typeof address === "object" ? address?.port : address}`);
});
