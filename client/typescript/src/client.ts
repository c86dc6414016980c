import { type DescMessage, fromBinary, type MessageShape, toBinary, create } from "@bufbuild/protobuf";
import { Int32ValueSchema, StringValueSchema } from "@bufbuild/protobuf/wkt";
import {
  type ChannelOptions,
  Client as GrpcClient,
  credentials,
  Metadata,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { type AcquireOptions, Schedules } from "./acquire.js";
import { type Check, requestMessage } from "./check.js";
import { CheckError } from "./errors.js";
import { RateLimitRequestSchema, RateLimitResponseSchema } from "./gen/sluicegate/client/v1/rls_pb.js";
import { type Verdict, verdictOf } from "./verdict.js";

/** Endpoint of a client without one, unless `SLUICEGATE_ENDPOINT` names another. */
const DEFAULT_ENDPOINT = "127.0.0.1:8081";

/** An application can wait longer than Envoy, whose default is 20 ms. */
const DEFAULT_TIMEOUT_MS = 100;

const CHANNEL: ChannelOptions = {
  // A failed call may have been counted.
  "grpc.enable_retries": 0,
  // A proxy for the internet does not reach the service.
  "grpc.enable_http_proxy": 0,
  "grpc.service_config_disable_resolution": 1,
  // Without a connection nothing is limited, or nothing passes: gRPC's backoff of up to two minutes is too long.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 2_000,
  // So that a connection that hangs is replaced.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 2_000,
};

/**
 * Options of a {@link Client}.
 */
export interface ClientOptions {
  /** Milliseconds to wait for an answer; 100 by default. */
  readonly timeoutMs?: number | undefined;
  /** Encrypts the connection: `true` for the certificate authorities of Node.js. */
  readonly tls?: boolean | TlsOptions | undefined;
}

/**
 * TLS of a connection.
 */
export interface TlsOptions {
  /** Certificate authorities (PEM), in place of those of Node.js. */
  readonly ca?: string | Uint8Array | undefined;
  /** Certificate chain of this client (PEM); needs `key`. */
  readonly cert?: string | Uint8Array | undefined;
  /** Private key of the certificate (PEM). */
  readonly key?: string | Uint8Array | undefined;
  /** Name in the service's certificate, if it is not the host of the endpoint. */
  readonly serverName?: string | undefined;
}

/**
 * Options of one call.
 */
export interface CallOptions {
  /** Milliseconds to wait for an answer, in place of the client's. */
  readonly timeoutMs?: number | undefined;
}

/** A state of the service, as gRPC's health checks report it. */
export type HealthStatus = "unknown" | "serving" | "not_serving" | "service_unknown";

/**
 * A client of a rate limit service. It has one connection, which opens with the first call and again after a failure:
 * use one client for all requests.
 *
 * Every check is one call. Answers are not cached and checks not batched, because a cached answer would not be exact.
 */
export class Client {
  readonly #grpc: GrpcClient;
  readonly #timeoutMs: number;
  #isClosed = false;
  readonly #schedules = new Schedules(this);

  /**
   * @param endpoint - `HOST:PORT` or `unix:PATH`; by default the environment variable `SLUICEGATE_ENDPOINT`, or else
   *   `127.0.0.1:8081`
   */
  constructor(endpoint: string = process.env["SLUICEGATE_ENDPOINT"] ?? DEFAULT_ENDPOINT, options: ClientOptions = {}) {
    if (endpoint.includes("://")) {
      throw new TypeError(`The endpoint is HOST:PORT or unix:PATH: ${endpoint}`);
    }
    const tls = options.tls === true ? {} : options.tls || undefined;
    const name = tls?.serverName;
    this.#timeoutMs = timeout(options.timeoutMs ?? DEFAULT_TIMEOUT_MS);
    this.#grpc = new GrpcClient(endpoint, tls ? secured(tls) : credentials.createInsecure(), {
      ...CHANNEL,
      ...(name !== undefined && { "grpc.ssl_target_name_override": name, "grpc.default_authority": name }),
    });
  }

  /**
   * Asks whether a request is allowed, and charges its hits if it is.
   *
   * @throws CheckError - there is no verdict
   * @throws TypeError, RangeError - the check is not valid
   */
  async check(check: Check, options: CallOptions = {}): Promise<Verdict> {
    const request = requestMessage(check);
    // Envoy's method: services and Envoy know it by this path.
    const path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    const response = await this.#call(path, RateLimitRequestSchema, request, RateLimitResponseSchema, options);
    return verdictOf(
      response,
      request.descriptors.map(({ limit }) => limit !== undefined),
    );
  }

  /**
   * Asks whether a request with one hit would be allowed, and charges nothing.
   *
   * @throws CheckError - there is no verdict
   */
  async peek(check: Check, options?: CallOptions): Promise<Verdict> {
    const peeks = check.descriptors.map(({ entries, limit }) => ({ entries, limit, hits: 0 }));
    return this.check({ domain: check.domain, descriptors: peeks }, options);
  }

  /**
   * Returns hits that an earlier check charged.
   *
   * @param hits - hits to return to each descriptor; by default those of the check
   * @throws CheckError - there is no verdict
   */
  async refund(check: Check, hits?: number, options?: CallOptions): Promise<Verdict> {
    const refunds = check.descriptors.map((descriptor) => ({
      entries: descriptor.entries,
      limit: descriptor.limit,
      refund: hits ?? descriptor.hits ?? check.hits ?? 1,
    }));
    return this.check({ domain: check.domain, descriptors: refunds }, options);
  }

  /**
   * Waits until a check is allowed.
   *
   * Waiters for the same domain and descriptors share one schedule, first in, first out: only the first asks the
   * service, and after a refusal all wait for the time that it reported, plus jitter. A waiter that gives up charges
   * nothing.
   *
   * @throws WaitExceededError - the wait would be longer than `maxWaitMs`
   * @throws CheckError - a check has no verdict
   */
  async acquire(check: Check, options: AcquireOptions = {}): Promise<Verdict> {
    return this.#schedules.acquire(check, options);
  }

  /**
   * Asks for the health of the service.
   *
   * @param service - name of a gRPC service; empty for the server as a whole
   * @throws CheckError - the server cannot be reached, or does not know the service
   */
  async health(service = "", options: CallOptions = {}): Promise<HealthStatus> {
    // gRPC's health messages have a single field each: on the wire they equal these two.
    const request = create(StringValueSchema, { value: service });
    const path = "/grpc.health.v1.Health/Check";
    const response = await this.#call(path, StringValueSchema, request, Int32ValueSchema, options);
    const states: readonly HealthStatus[] = ["unknown", "serving", "not_serving", "service_unknown"];
    return states[response.value] ?? "unknown";
  }

  /** Closes the connection. Calls in flight fail. */
  close(): void {
    this.#isClosed = true;
    this.#grpc.close();
  }

  async #call<Request extends DescMessage, Response extends DescMessage>(
    path: string,
    requestSchema: Request,
    request: MessageShape<Request>,
    responseSchema: Response,
    options: CallOptions,
  ): Promise<MessageShape<Response>> {
    const timeoutMs = timeout(options.timeoutMs ?? this.#timeoutMs);
    if (this.#isClosed) {
      throw new CheckError("other", "The client is closed.", { code: status.CANCELLED });
    }
    return new Promise((resolve, reject) => {
      this.#grpc.makeUnaryRequest(
        path,
        (message: MessageShape<Request>) => Buffer.from(toBinary(requestSchema, message)),
        (bytes: Buffer) => fromBinary(responseSchema, bytes),
        request,
        new Metadata(),
        { deadline: Date.now() + timeoutMs },
        (error, response) => (response === undefined ? reject(failure(error, timeoutMs)) : resolve(response)),
      );
    });
  }
}

function timeout(milliseconds: number): number {
  if (!(milliseconds > 0)) {
    throw new RangeError(`timeoutMs must be more than 0: ${milliseconds}`);
  }
  return milliseconds;
}

function secured(tls: TlsOptions) {
  const pem = (text: string | Uint8Array | undefined) => (text === undefined ? null : Buffer.from(text));
  return credentials.createSsl(pem(tls.ca), pem(tls.key), pem(tls.cert));
}

function failure(error: ServiceError | null, timeoutMs: number): CheckError {
  const code = error?.code ?? status.UNKNOWN;
  const options = { cause: error, code };
  switch (code) {
    case status.DEADLINE_EXCEEDED:
      return new CheckError(
        "deadline_exceeded",
        `The rate limit service did not answer within ${timeoutMs} ms.`,
        options,
      );
    case status.UNAVAILABLE:
      return new CheckError("unavailable", `The rate limit service is unavailable: ${error?.details}`, options);
    default:
      return new CheckError("other", `The rate limit service failed: ${error?.message}`, options);
  }
}
