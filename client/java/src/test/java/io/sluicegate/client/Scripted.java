package io.sluicegate.client;

import io.grpc.BindableService;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.ServerServiceDefinition;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ServerCalls;
import io.sluicegate.client.v1.RateLimitRequest;
import io.sluicegate.client.v1.RateLimitResponse;
import java.io.IOException;
import java.util.function.Function;

/** A rate limit service whose answers a test writes. */
record Scripted(Server server) implements AutoCloseable {
    static final RateLimitResponse ALLOWED =
        RateLimitResponse.newBuilder().setOverallCode(RateLimitResponse.Code.OK).build();
    static final RateLimitResponse OVERLOAD =
        RateLimitResponse.newBuilder().setOverallCode(RateLimitResponse.Code.OVER_LIMIT).build();

    /** A refusal that reports a time. */
    static RateLimitResponse refusal(long resetMillis) {
        RateLimitResponse.Builder refusal = OVERLOAD.toBuilder();
        refusal.addStatusesBuilder()
            .setCode(RateLimitResponse.Code.OVER_LIMIT)
            .getDurationUntilResetBuilder()
            .setSeconds(resetMillis / 1000)
            .setNanos((int) (resetMillis % 1000 * 1_000_000));
        return refusal.build();
    }

    static Scripted start(Function<RateLimitRequest, RateLimitResponse> answer) throws IOException {
        return start(() -> ServerServiceDefinition.builder("envoy.service.ratelimit.v3.RateLimitService")
            .addMethod(SluicegateClient.SHOULD_RATE_LIMIT, ServerCalls.asyncUnaryCall((request, observer) -> {
                try {
                    observer.onNext(answer.apply(request));
                    observer.onCompleted();
                } catch (StatusRuntimeException failure) {
                    observer.onError(failure);
                }
            }))
            .build());
    }

    static Scripted start(BindableService service) throws IOException {
        return new Scripted(Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
            .addService(service).build().start());
    }

    String address() {
        return "127.0.0.1:" + server.getPort();
    }

    @Override
    public void close() {
        server.shutdownNow();
    }
}
