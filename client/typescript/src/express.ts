/**
 * Middleware for Express.
 *
 * @module
 */
import type { Request, RequestHandler } from "express";
import { limiter, type RateLimitOptions } from "./limiter.js";

/**
 * Express middleware that asks the rate limit service before a request is handled.
 *
 * @throws TypeError, RangeError - the options are not valid
 */
export function rateLimit(options: RateLimitOptions<Request>): RequestHandler {
  const decide = limiter(options);
  return async (request, response, next) => {
    let outcome: Awaited<ReturnType<typeof decide>>;
    try {
      outcome = await decide(request);
    } catch (error) {
      next(error);
      return;
    }
    if (outcome.passes) {
      outcome.headers.forEach(([name, value]) => response.appendHeader(name, value));
      next();
      return;
    }
    response.statusCode = outcome.status;
    outcome.headers.forEach(([name, value]) => response.setHeader(name, value));
    response.end(outcome.body);
  };
}
