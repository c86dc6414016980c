package io.sluicegate.client;

import io.grpc.CallOptions;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import io.sluicegate.client.v1.RateLimitRequest;
import io.sluicegate.client.v1.RateLimitResponse;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Supplier;

/**
 * A client of a rate limit service. It is safe for concurrent use, and all its calls share one connection, so that a
 * process needs one client for each service.
 *
 * <pre>{@code
 * try (SluicegateClient client = SluicegateClient.connect("localhost:8081")) {
 *     Verdict verdict = client.check(Check.of("public_api", Descriptor.of("user", "ann")));
 *     if (!verdict.isAllowed()) { ... }
 * }
 * }</pre>
 */
public final class SluicegateClient implements AutoCloseable {
    /**
     * How long a call may take without {@link Builder#timeout}: 100 ms. Envoy's default is 20 ms; this one is longer
     * because it includes opening a connection.
     */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofMillis(100);

    /**
     * Envoy's method. Our messages have a package of their own, and no service, whose method would have another path.
     */
    static final MethodDescriptor<RateLimitRequest, RateLimitResponse> SHOULD_RATE_LIMIT =
        MethodDescriptor.<RateLimitRequest, RateLimitResponse>newBuilder()
            .setType(MethodDescriptor.MethodType.UNARY)
            .setFullMethodName("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
            .setRequestMarshaller(ProtoUtils.marshaller(RateLimitRequest.getDefaultInstance()))
            .setResponseMarshaller(ProtoUtils.marshaller(RateLimitResponse.getDefaultInstance()))
            .build();

    private static final Duration WARM_UP = Duration.ofSeconds(10);

    /** The shortest time between two attempts to connect. gRPC waits up to two minutes for a service that restarts. */
    private static final long RECONNECT_NANOS = TimeUnit.SECONDS.toNanos(1);

    private final ManagedChannel channel;
    private final Duration timeout;
    private final Schedules schedules = new Schedules(this);
    private final AtomicLong reconnected = new AtomicLong(System.nanoTime());

    private SluicegateClient(ManagedChannel channel, Duration timeout) {
        this.channel = channel;
        this.timeout = timeout;
        warmUp();
    }

    /** Connects and loads classes, which takes longer than the timeout that the first call would have for it. */
    private void warmUp() {
        Check check = Check.of("", Descriptor.of("", ""));
        Messages.request(check).toByteString();
        Verdict.of(check, RateLimitResponse.newBuilder()
            .addStatuses(RateLimitResponse.DescriptorStatus.getDefaultInstance()).build());
        ClientCalls.futureUnaryCall(
            channel.newCall(HealthGrpc.getCheckMethod(), options(WARM_UP)), HealthCheckRequest.getDefaultInstance());
    }

    /**
     * Returns a client without encryption and with the default timeout.
     *
     * @param target {@code host:port}, or {@code unix:path} for a socket (Linux on x86-64 and ARM64)
     * @return the client, which connects in the background, and asks for the server's health
     */
    public static SluicegateClient connect(String target) {
        return builder(target).build();
    }

    /**
     * Returns a builder of a client with other options.
     *
     * @param target {@code host:port}, or {@code unix:path} for a socket (Linux on x86-64 and ARM64)
     * @return the builder
     */
    public static Builder builder(String target) {
        return new Builder(target);
    }

    /**
     * Asks the service, once. A call that fails may have been counted, so it is not repeated. The call neither ends
     * with the gRPC {@link Context} of the caller nor has its deadline: a remote caller could choose to pass that way.
     *
     * @param check what to ask
     * @return the verdict
     * @throws CheckException if there is no verdict
     */
    public Verdict check(Check check) {
        return check(check, timeout);
    }

    /**
     * Asks the service, as {@link #check(Check)} does, with another timeout.
     *
     * @param check what to ask
     * @param timeout how long the call may take
     * @return the verdict
     * @throws CheckException if there is no verdict
     */
    public Verdict check(Check check, Duration timeout) {
        RateLimitRequest request = Messages.request(check);
        return Verdict.of(check, call(() ->
            ClientCalls.blockingUnaryCall(channel, SHOULD_RATE_LIMIT, options(timeout), request)));
    }

    /**
     * Asks the service, as {@link #check(Check)} does, without blocking. Cancelling or completing the future does not
     * end the call.
     *
     * @param check what to ask
     * @return the verdict, or a {@link CheckException}
     */
    public CompletableFuture<Verdict> checkAsync(Check check) {
        CompletableFuture<Verdict> verdict = new CompletableFuture<>();
        detached(() -> {
            ClientCall<RateLimitRequest, RateLimitResponse> call =
                channel.newCall(SHOULD_RATE_LIMIT, options(timeout));
            ClientCalls.asyncUnaryCall(call, Messages.request(check), new Answer(check, verdict));
            return null;
        });
        return verdict;
    }

    /**
     * Asks until the check is allowed, and returns its verdict. After a refusal it waits as long as the service
     * reports, with jitter so that the processes that share a limit do not return together.
     *
     * <p>Callers of one client that check the same descriptors share one schedule: they are served first in, first out,
     * and only the first of them asks, however many wait.
     *
     * <p>Sluicegate reports times in whole seconds, rounded up. For a rate of more than one a second, start it with
     * {@code --dynamic-metadata}, which has the exact time.
     *
     * @param check what to ask
     * @param maxWait how long to wait. The wait ends as soon as the next check would be later than that; a check that
     *     began in time is awaited. Zero asks once, if no other caller waits.
     * @return the verdict, which is allowed
     * @throws WaitExceededException if {@code maxWait} has passed
     * @throws CheckException if a call fails
     * @throws InterruptedException if the thread is interrupted. A call in flight is awaited in the background, and
     *     refunded if it was allowed, so that a caller that gives up is not charged.
     * @throws IllegalStateException if the client is closed
     */
    public Verdict acquire(Check check, Duration maxWait) throws InterruptedException {
        return schedules.acquire(check, maxWait);
    }

    /**
     * Asks the service for its health, by gRPC's health checking protocol.
     *
     * @throws CheckException if the service does not serve or does not answer
     */
    public void health() {
        HealthCheckResponse answer = call(() -> ClientCalls.blockingUnaryCall(
            channel, HealthGrpc.getCheckMethod(), options(timeout), HealthCheckRequest.getDefaultInstance()));
        if (answer.getStatus() != HealthCheckResponse.ServingStatus.SERVING) {
            throw CheckException.notServing(answer.getStatus());
        }
    }

    /**
     * Ends the waits of {@link #acquire} and of pacers with an {@link IllegalStateException}, awaits the refunds of
     * callers that gave up, and closes the connection.
     */
    @Override
    public void close() {
        boolean settled = schedules.close();
        channel.shutdown();
        try {
            if (settled && channel.awaitTermination(timeout.toNanos(), TimeUnit.NANOSECONDS)) {
                return;
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        channel.shutdownNow();
    }

    Schedules schedules() {
        return schedules;
    }


    private <T> T call(Supplier<T> call) {
        try {
            return detached(call);
        } catch (StatusRuntimeException failure) {
            if (failure.getStatus().getCode() == Status.Code.CANCELLED && Thread.currentThread().isInterrupted()) {
                throw CheckException.interrupted();
            }
            throw failed(failure);
        }
    }

    private CheckException failed(StatusRuntimeException failure) {
        CheckException exception = CheckException.of(failure);
        if (exception.kind() == CheckException.Kind.UNAVAILABLE) {
            long last = reconnected.get();
            long now = System.nanoTime();
            if (now - last > RECONNECT_NANOS && reconnected.compareAndSet(last, now)) {
                channel.resetConnectBackoff();
            }
        }
        return exception;
    }

    private static CallOptions options(Duration timeout) {
        return CallOptions.DEFAULT.withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS);
    }

    /** Starts a call that does not end with the context of the caller. */
    private static <T> T detached(Supplier<T> call) {
        Context context = Context.current().fork();
        Context previous = context.attach();
        try {
            return call.get();
        } finally {
            context.detach(previous);
        }
    }

    private final class Answer implements StreamObserver<RateLimitResponse> {
        private final Check check;
        private final CompletableFuture<Verdict> verdict;

        Answer(Check check, CompletableFuture<Verdict> verdict) {
            this.check = check;
            this.verdict = verdict;
        }

        @Override
        public void onNext(RateLimitResponse message) {
            try {
                verdict.complete(Verdict.of(check, message));
            } catch (CheckException failure) {
                verdict.completeExceptionally(failure);
            }
        }

        @Override
        public void onError(Throwable failure) {
            verdict.completeExceptionally(failed(Status.fromThrowable(failure).asRuntimeException()));
        }

        @Override
        public void onCompleted() {
        }
    }

    /** Builder of a {@link SluicegateClient}. */
    public static final class Builder {
        private final String target;
        private Duration timeout = DEFAULT_TIMEOUT;
        private ChannelCredentials credentials = InsecureChannelCredentials.create();

        private Builder(String target) {
            if (target.startsWith("http://") || target.startsWith("https://")) {
                throw new IllegalArgumentException(
                    "target \"" + target + "\" must be host:port or unix:path; tls() encrypts");
            }
            this.target = target;
        }

        /**
         * Sets how long a call may take.
         *
         * @param timeout the time, more than zero
         * @return this builder
         */
        public Builder timeout(Duration timeout) {
            if (timeout.isNegative() || timeout.isZero()) {
                throw new IllegalArgumentException("timeout must be positive: " + timeout);
            }
            this.timeout = timeout;
            return this;
        }

        /**
         * Encrypts the connection, and trusts the certificate authorities of the Java runtime.
         *
         * @return this builder
         */
        public Builder tls() {
            return credentials(TlsChannelCredentials.create());
        }

        /**
         * Encrypts the connection, and trusts other certificate authorities.
         *
         * @param authorities a file in PEM
         * @return this builder
         * @throws IOException if the file cannot be read
         */
        public Builder tls(Path authorities) throws IOException {
            return credentials(TlsChannelCredentials.newBuilder().trustManager(authorities.toFile()).build());
        }

        /**
         * Encrypts the connection, trusts other certificate authorities, and authenticates with a client certificate.
         *
         * @param authorities a file in PEM
         * @param certificate a file in PEM with the certificate chain of the client
         * @param key a file in PEM with the private key of the client, in PKCS #8
         * @return this builder
         * @throws IOException if a file cannot be read
         */
        public Builder tls(Path authorities, Path certificate, Path key) throws IOException {
            return credentials(TlsChannelCredentials.newBuilder()
                .trustManager(authorities.toFile())
                .keyManager(certificate.toFile(), key.toFile())
                .build());
        }

        /**
         * Sets the credentials of the connection, for example those that read their files again when they change.
         *
         * @param credentials the credentials of gRPC
         * @return this builder
         */
        public Builder credentials(ChannelCredentials credentials) {
            this.credentials = Objects.requireNonNull(credentials);
            return this;
        }

        /**
         * Returns the client, which connects in the background, and asks for the server's health, so that its first
         * check does not time out while classes are loaded.
         *
         * @return the client
         */
        public SluicegateClient build() {
            ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(target, credentials)
                // A call that failed may have been counted.
                .disableRetry()
                .disableServiceConfigLookUp()
                // Detects a service that disappeared without closing the connection.
                .keepAliveTime(10, TimeUnit.SECONDS)
                .keepAliveTimeout(5, TimeUnit.SECONDS);
            if (target.startsWith("unix:")) {
                // gRPC's default is the path, which is no valid authority: the server would reset each call.
                builder.overrideAuthority("localhost");
            }
            return new SluicegateClient(builder.build(), timeout);
        }
    }
}
