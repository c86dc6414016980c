import type { IncomingHttpHeaders } from "node:http";
import { isIP } from "node:net";
import type { Descriptor } from "./check.js";

/** The most bytes of a body that {@link bodyField} reads. */
const BODY_BYTES_MAX = 64 * 1024;

/**
 * What the key functions read of a request: of Node.js, Express, Fastify, or `fetch`.
 */
export interface KeyRequest {
  /** Headers of Node.js, or a `Headers` object. */
  readonly headers: IncomingHttpHeaders | Headers;
  /** The connection, where the framework has one. */
  readonly socket?: { readonly remoteAddress?: string | undefined } | null | undefined;
  /** The parsed body, or the stream of a `Request`. */
  readonly body?: unknown;
  /** The user that the framework's authentication found. */
  readonly user?: unknown;
}

/**
 * Selects the value of a descriptor's entry from a request. `undefined`: the request has none, and is not limited by
 * it.
 */
export type KeyFunction<Request> = (request: Request) => string | undefined | Promise<string | undefined>;

/**
 * Options of {@link clientIp}.
 */
export interface ClientIpOptions<Request> {
  /** Proxies in front of the application that append to `X-Forwarded-For`; 0 by default. */
  readonly trustedProxies?: number | undefined;
  /** The address at the other end of the connection, for frameworks whose requests have no `socket`. */
  readonly peer?: ((request: Request) => string | undefined) | undefined;
}

/**
 * Address of the client: behind `trustedProxies` proxies, the address that the outermost of them wrote, counted from
 * the right of `X-Forwarded-For`; otherwise, or if the header is malformed or too short, the other end of the connection.
 *
 * Returns `unknown` if there is no address, so that such requests share one counter and are not unlimited.
 */
export function clientIp<Request extends KeyRequest>(
  options: ClientIpOptions<Request> = {},
): (request: Request) => string {
  const trusted = options.trustedProxies ?? 0;
  if (!Number.isInteger(trusted) || trusted < 0) {
    throw new RangeError(`trustedProxies must be a whole number: ${trusted}`);
  }
  return (request) => {
    const forwarded = trusted === 0 ? undefined : headerOf(request, "x-forwarded-for")?.split(",").at(-trusted)?.trim();
    const peer = () => (options.peer ? options.peer(request) : request.socket?.remoteAddress);
    const address = forwarded !== undefined && isIP(forwarded) !== 0 ? forwarded : (peer() ?? "unknown");
    // One client has one counter, whether it is read from a dual-stack socket or from a header.
    return address.toLowerCase().replace(/^::ffff:(?=\d+\.)/, "");
  };
}

/**
 * Value of a header, such as an API key. `undefined` if it is absent or empty.
 */
export function header(name: string): (request: KeyRequest) => string | undefined {
  return (request) => headerOf(request, name.toLowerCase()) || undefined;
}

/**
 * A field of the user that the framework's authentication found (`request.user`), or the user itself if it is text.
 */
export function user(field = "id"): (request: KeyRequest) => string | undefined {
  return (request) => (typeof request.user === "string" ? request.user : fieldOf(request.user, field));
}

/**
 * A field of the JSON body, such as the e-mail address of a login. Empty if there is none, or the body is larger than
 * 64 KiB: such requests share one counter, so that no client evades the limit by a body that is not read.
 *
 * Express and Fastify parse the body before: put `express.json()` in front of the middleware, and use Fastify's
 * `preHandler`. Their own limits bound its size.
 */
export function bodyField(field: string): (request: KeyRequest) => Promise<string> {
  return async (request) => fieldOf(isFetchRequest(request) ? await json(request) : request.body, field) ?? "";
}

/**
 * Descriptors from key functions: one for each object, with an entry for each of its keys. A descriptor for which the
 * request lacks a value is left out.
 *
 * ```ts
 * descriptors: descriptorsOf({ email: bodyField("email") }, { remote_address: clientIp() })
 * ```
 */
export function descriptorsOf<Request>(
  ...parts: readonly Readonly<Record<string, string | KeyFunction<Request>>>[]
): (request: Request) => Promise<Descriptor[]> {
  return async (request) => {
    const descriptors = parts.map(async (part) => {
      const entries = Object.entries(part).map(async ([key, value]) => {
        const text = typeof value === "string" ? value : await value(request);
        return text === undefined ? undefined : ([key, text] as const);
      });
      const found = (await Promise.all(entries)).filter((entry) => entry !== undefined);
      return found.length === entries.length ? [{ entries: found }] : [];
    });
    return (await Promise.all(descriptors)).flat();
  };
}

function headerOf(request: KeyRequest, name: string): string | undefined {
  const { headers } = request;
  if (headers instanceof Headers) {
    return headers.get(name) ?? undefined;
  }
  const value = headers[name];
  return Array.isArray(value) ? value.join(", ") : value;
}

function fieldOf(object: unknown, field: string): string | undefined {
  if (typeof object !== "object" || object === null || !Object.hasOwn(object, field)) {
    return undefined;
  }
  const value = (object as Record<string, unknown>)[field];
  return typeof value === "string" || typeof value === "number" ? String(value) : undefined;
}

function isFetchRequest(request: KeyRequest): request is Request {
  return request instanceof Request;
}

/** The JSON body of a request whose handler reads it too; `undefined` if it is not JSON, or too large. */
async function json(request: Request): Promise<unknown> {
  const reader = request.clone().body?.getReader();
  const chunks: Uint8Array[] = [];
  for (let bytes = 0, next = await reader?.read(); next?.value; next = await reader?.read()) {
    bytes += next.value.byteLength;
    if (bytes > BODY_BYTES_MAX) {
      // Not awaited: it ends with the handler's copy.
      void reader?.cancel();
      return undefined;
    }
    chunks.push(next.value);
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString("utf8"));
  } catch {
    return undefined;
  }
}
