/**
 * Asks a rate limit service, Sluicegate or another one with Envoy's rate limit API, whether requests may pass:
 * {@link io.sluicegate.client.SluicegateClient} as a call, {@link io.sluicegate.client.RateLimitFilter} as a filter of
 * servlets, and {@link io.sluicegate.client.Pacer} as a pacer for workers.
 */
package io.sluicegate.client;
