package io.sluicegate.client;

import com.google.gson.JsonObject;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.function.BiConsumer;
import java.util.function.Function;
import java.util.function.Predicate;

/**
 * A servlet filter that asks the service about each request before the rest of the chain runs. It asks once for a
 * request, not again when the container dispatches it to another servlet, to an error page or after asynchronous work.
 *
 * <pre>{@code
 * RateLimitFilter filter = RateLimitFilter.builder(client)
 *     .domain("web")
 *     .descriptors(request -> List.of(Descriptor.of("remote_address", RequestValues.clientIp(request, 1))))
 *     .build();
 * }</pre>
 */
public final class RateLimitFilter extends HttpFilter {
    private static final long serialVersionUID = 1;
    private static final int TOO_MANY_REQUESTS = 429;

    /** Writes the answer to a refused request. */
    @FunctionalInterface
    public interface RefusalHandler {
        /**
         * Writes the status and the body of the answer. {@code Retry-After} and the headers of the service are set
         * before.
         *
         * @param request the request
         * @param response the answer
         * @param verdict the verdict
         * @throws IOException if the answer cannot be written
         * @throws ServletException if the answer fails otherwise
         */
        void refuse(HttpServletRequest request, HttpServletResponse response, Verdict verdict)
            throws IOException, ServletException;
    }

    private final transient SluicegateClient client;
    private final String domain;
    private final transient Function<HttpServletRequest, List<Descriptor>> descriptors;
    private final transient Function<HttpServletRequest, Hits> hits;
    private final FailureMode failureMode;
    private final Duration timeout;
    private final transient Predicate<HttpServletRequest> skip;
    private final transient RefusalHandler onLimited;
    private final transient BiConsumer<HttpServletRequest, CheckException> onError;

    private RateLimitFilter(Builder builder) {
        client = builder.client;
        domain = Objects.requireNonNull(builder.domain, "domain");
        descriptors = Objects.requireNonNull(builder.descriptors, "descriptors");
        hits = builder.hits;
        failureMode = builder.failureMode;
        timeout = builder.timeout;
        skip = builder.skip;
        onLimited = builder.onLimited;
        onError = builder.onError;
    }

    /**
     * Returns a builder of a filter.
     *
     * @param client asks the service
     * @return the builder, which needs a domain and descriptors
     */
    public static Builder builder(SluicegateClient client) {
        return new Builder(client);
    }

    @Override
    protected void doFilter(HttpServletRequest original, HttpServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        if (original.getDispatcherType() != DispatcherType.REQUEST || skip.test(original)) {
            chain.doFilter(original, response);
            return;
        }
        BufferedRequest request = new BufferedRequest(original);
        List<Descriptor> limited = descriptors.apply(request);
        if (limited.isEmpty()) {
            chain.doFilter(request, response);
            return;
        }
        Verdict verdict;
        try {
            Check check = Check.of(domain, limited).withHits(hits.apply(request));
            verdict = timeout == null ? client.check(check) : client.check(check, timeout);
        } catch (CheckException failure) {
            onError.accept(request, failure);
            if (failureMode == FailureMode.OPEN) {
                chain.doFilter(request, response);
            } else {
                writeProblem(response, HttpServletResponse.SC_SERVICE_UNAVAILABLE, "Service Unavailable",
                    "The rate limit service does not answer.", OptionalLong.empty());
            }
            return;
        }
        verdict.responseHeaders().forEach(header -> response.addHeader(header.name(), header.value()));
        if (verdict.isAllowed()) {
            chain.doFilter(request, response);
            return;
        }
        OptionalLong seconds = verdict.retryAfterSeconds();
        if (seconds.isPresent() && !response.containsHeader("Retry-After")) {
            response.setHeader("Retry-After", Long.toString(seconds.getAsLong()));
        }
        onLimited.refuse(request, response, verdict);
    }

    private static void writeRefusal(HttpServletRequest request, HttpServletResponse response, Verdict verdict)
            throws IOException {
        byte[] body = verdict.rawBody();
        if (body.length == 0) {
            writeProblem(response, TOO_MANY_REQUESTS, "Too Many Requests", "The rate limit is exceeded.",
                verdict.retryAfterSeconds());
            return;
        }
        if (response.getContentType() == null) {
            response.setContentType("text/plain; charset=utf-8");
        }
        write(response, TOO_MANY_REQUESTS, body);
    }

    /** Writes a body of RFC 9457. */
    private static void writeProblem(
            HttpServletResponse response, int status, String title, String detail, OptionalLong retryAfter)
            throws IOException {
        JsonObject problem = new JsonObject();
        problem.addProperty("type", "about:blank");
        problem.addProperty("title", title);
        problem.addProperty("status", status);
        problem.addProperty("detail", detail);
        retryAfter.ifPresent(seconds -> problem.addProperty("retryAfter", seconds));
        response.setContentType("application/problem+json");
        write(response, status, problem.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static void write(HttpServletResponse response, int status, byte[] body) throws IOException {
        response.setStatus(status);
        response.setContentLength(body.length);
        response.getOutputStream().write(body);
    }

    /** Builder of a {@link RateLimitFilter}. */
    public static final class Builder {
        private final SluicegateClient client;
        private String domain;
        private Function<HttpServletRequest, List<Descriptor>> descriptors;
        private Function<HttpServletRequest, Hits> hits = request -> Hits.charge(1);
        private FailureMode failureMode = FailureMode.OPEN;
        private Duration timeout;
        private Predicate<HttpServletRequest> skip = request -> false;
        private RefusalHandler onLimited = RateLimitFilter::writeRefusal;
        private BiConsumer<HttpServletRequest, CheckException> onError = (request, failure) -> { };

        private Builder(SluicegateClient client) {
            this.client = Objects.requireNonNull(client, "client");
        }

        /**
         * Sets the domain, which selects the limits file. Required.
         *
         * @param domain the domain
         * @return this builder
         */
        public Builder domain(String domain) {
            this.domain = domain;
            return this;
        }

        /**
         * Sets the function that returns the descriptors of a request. A request without descriptors is not limited.
         * Required. {@link RequestValues} has functions for the values.
         *
         * @param descriptors the function
         * @return this builder
         */
        public Builder descriptors(Function<HttpServletRequest, List<Descriptor>> descriptors) {
            this.descriptors = descriptors;
            return this;
        }

        /**
         * Sets the function that returns the hits of a request. Default: one hit.
         *
         * @param hits the function
         * @return this builder
         */
        public Builder hits(Function<HttpServletRequest, Hits> hits) {
            this.hits = hits;
            return this;
        }

        /**
         * Sets what happens if the service does not answer. Default: {@link FailureMode#OPEN}.
         *
         * @param failureMode the failure mode
         * @return this builder
         */
        public Builder failureMode(FailureMode failureMode) {
            this.failureMode = failureMode;
            return this;
        }

        /**
         * Sets how long the service has to answer. Default: the timeout of the client.
         *
         * @param timeout the time
         * @return this builder
         */
        public Builder timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /**
         * Sets which requests are not limited. Default: none.
         *
         * @param skip returns whether a request is not limited
         * @return this builder
         */
        public Builder skip(Predicate<HttpServletRequest> skip) {
            this.skip = skip;
            return this;
        }

        /**
         * Sets what writes the answer to a refused request. Default: status 429 with the body of the service, or else
         * {@code application/problem+json}.
         *
         * @param onLimited writes the answer
         * @return this builder
         */
        public Builder onLimited(RefusalHandler onLimited) {
            this.onLimited = onLimited;
            return this;
        }

        /**
         * Sets what is called with each failed check, before the failure mode applies, for example to count it.
         *
         * @param onError is called with the request and the failure; default: nothing
         * @return this builder
         */
        public Builder onError(BiConsumer<HttpServletRequest, CheckException> onError) {
            this.onError = onError;
            return this;
        }

        /**
         * Returns the filter.
         *
         * @return the filter
         * @throws NullPointerException without a domain or descriptors
         */
        public RateLimitFilter build() {
            return new RateLimitFilter(this);
        }
    }
}
