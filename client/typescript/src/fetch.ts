/**
 * Wrapper for handlers from `Request` to `Response`, as of Hono, Next.js and Remix.
 *
 * @module
 */
import { limiter, type RateLimitOptions } from "./limiter.js";

/**
 * A handler from request to response. Further arguments are the framework's.
 */
export type FetchHandler<Rest extends unknown[]> = (request: Request, ...rest: Rest) => Response | Promise<Response>;

/**
 * Wraps handlers so that they ask the rate limit service first.
 *
 * ```ts
 * export const GET = rateLimit({ domain: "api", descriptors })(handler);
 * ```
 *
 * @throws TypeError, RangeError - the options are not valid
 */
export function rateLimit(
  options: RateLimitOptions<Request>,
): <Rest extends unknown[]>(handler: FetchHandler<Rest>) => (request: Request, ...rest: Rest) => Promise<Response> {
  const decide = limiter(options);
  return (handler) =>
    async (request, ...rest) => {
      const outcome = await decide(request);
      if (!outcome.passes) {
        return new Response(outcome.body, {
          status: outcome.status,
          headers: outcome.headers.map(([...pair]) => pair),
        });
      }
      const response = await handler(request, ...rest);
      if (outcome.headers.length === 0) {
        return response;
      }
      // Headers of some responses cannot be changed, such as those of redirects.
      const headers = new Headers(response.headers);
      outcome.headers.forEach(([name, value]) => headers.append(name, value));
      return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
    };
}
