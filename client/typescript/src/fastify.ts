/**
 * Hook for Fastify.
 *
 * @module
 */
import type { FastifyReply, FastifyRequest } from "fastify";
import { limiter, type RateLimitOptions } from "./limiter.js";

/**
 * Fastify hook that asks the rate limit service before a request is handled. As `onRequest` it runs before the body is
 * read; keys from the body or from authentication need `preHandler`.
 *
 * @throws TypeError, RangeError - the options are not valid
 */
export function rateLimit(
  options: RateLimitOptions<FastifyRequest>,
): (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply | undefined> {
  const decide = limiter(options);
  return async (request, reply) => {
    const outcome = await decide(request);
    if (outcome.passes) {
      for (const [name, value] of outcome.headers) {
        const present = reply.getHeader(name);
        reply.header(name, present === undefined ? value : `${present}, ${value}`);
      }
      return undefined;
    }
    outcome.headers.forEach(([name, value]) => reply.header(name, value));
    // To the type of a text, Fastify would add a character set.
    return reply.code(outcome.status).send(Buffer.from(outcome.body));
  };
}
