/** The real server, for tests. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import type { TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

const BINARY = process.env["SLUICEGATE_BINARY"] ?? resolve("../../target/debug/sluicegate");

if (!existsSync(BINARY)) {
  throw new Error(`There is no server at ${BINARY}: run cargo build, or set SLUICEGATE_BINARY.`);
}

/** Options of a client on a machine that is busy with other tests. */
export const PATIENT = { timeoutMs: 10_000 };

/** The environment without settings that the server would take. */
const ENVIRONMENT = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("SLUICEGATE_")));

/** A running server: the endpoint of its gRPC listener, and its HTTP address. */
export interface Server {
  readonly grpc: string;
  readonly http: string;
  readonly stop: () => Promise<void>;
}

/** A folder that lasts as long as the test. */
export async function folder(test: TestContext): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), "sluicegate-"));
  test.after(() => rm(path, { recursive: true }));
  return path;
}

/** Starts a server with limits files of these texts; it stops with the test. */
export async function serve(
  test: TestContext,
  limits: string | readonly string[],
  flags: string[] = [],
): Promise<Server> {
  const path = await folder(test);
  for (const [at, text] of [limits].flat().entries()) {
    await writeFile(join(path, `${at}.yaml`), text);
  }
  const listeners = [
    ...(flags.includes("--grpc-listen") ? [] : ["--grpc-listen", "127.0.0.1:0"]),
    ...["--http-listen", "127.0.0.1:0", "--admin-listen", "off", "--drain-delay", "0s"],
  ];
  const server = start(test, BINARY, ["serve", "--limits", path, ...listeners, ...flags], { env: ENVIRONMENT });
  const lines: string[] = [];
  for await (const line of createInterface({ input: server.stderr! })) {
    lines.push(line);
    const [, grpc, http] = /serving grpc=(\S+) http=(\S+)/.exec(line) ?? [];
    if (grpc && http) {
      server.stderr!.resume();
      return { grpc, http, stop: () => stop(server) };
    }
  }
  throw new Error(`The server did not start:\n${lines.join("\n")}`);
}

/** Starts Redis without persistence; it stops with the test. Returns its port. */
export async function redis(test: TestContext): Promise<number> {
  const port = await freePort();
  const flags = ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
  start(test, "redis-server", [...flags, "--dir", await folder(test)]);
  await until(async () => (await redisCommand(port, "PING")) === "PONG");
  return port;
}

/** Sends a command to Redis; returns what it prints. */
export async function redisCommand(port: number, ...command: string[]): Promise<string> {
  const { stdout } = await promisify(execFile)("redis-cli", ["-p", String(port), ...command]);
  return stdout.trim();
}

/** Waits for a condition; errors count as false. */
export async function until(condition: () => Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 20_000; Date.now() < end; await sleep(20)) {
    if (await condition().catch(() => false)) {
      return;
    }
  }
  throw new Error("The condition was not met in time.");
}

/** The value of a metric of the server; 0 if it has none. */
export async function metric(server: Server, series: string): Promise<number> {
  const response = await fetch(`http://${server.http}/metrics`);
  const line = (await response.text()).split("\n").find((text) => text.startsWith(`${series} `));
  return Number(line?.slice(series.length + 1) ?? 0);
}

/** A port that no program listens on. */
export async function freePort(): Promise<number> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const address = listener.address();
  listener.close();
  await once(listener, "close");
  return typeof address === "object" && address ? address.port : 0;
}

function start(test: TestContext, program: string, flags: string[], options: { env?: NodeJS.ProcessEnv } = {}) {
  const child = spawn(program, flags, { stdio: ["ignore", "ignore", "pipe"], ...options });
  test.after(() => stop(child));
  return child;
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) {
    child.kill();
    await once(child, "exit");
  }
}
