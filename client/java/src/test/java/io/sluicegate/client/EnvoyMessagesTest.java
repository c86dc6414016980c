package io.sluicegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import io.envoyproxy.envoy.extensions.common.ratelimit.v3.RateLimitDescriptor;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitRequest;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitResponse;
import io.envoyproxy.envoy.service.ratelimit.v3.RateLimitServiceGrpc;
import io.envoyproxy.envoy.type.v3.RateLimitUnit;
import java.time.Duration;
import org.junit.jupiter.api.Test;

/** Our messages beside those of Envoy's published package, in one process. */
class EnvoyMessagesTest {
    private static final Check CHECK = Check
        .of("shop", Descriptor.of("user", "ann").withOverride(LimitOverride.of(5, Duration.ofMinutes(1))))
        .withHits(3);

    @Test
    void envoys_package_reads_our_request() throws Exception {
        RateLimitRequest envoys = RateLimitRequest.newBuilder()
            .setDomain("shop")
            .setHitsAddend(3)
            .addDescriptors(RateLimitDescriptor.newBuilder()
                .addEntries(RateLimitDescriptor.Entry.newBuilder().setKey("user").setValue("ann"))
                .setLimit(RateLimitDescriptor.RateLimitOverride.newBuilder()
                    .setRequestsPerUnit(5)
                    .setUnit(RateLimitUnit.MINUTE)))
            .build();
        assertEquals(envoys, RateLimitRequest.parseFrom(Messages.request(CHECK).toByteArray()));
    }

    @Test
    void answer_of_envoys_package_is_a_verdict() throws Exception {
        RateLimitResponse refusal = RateLimitResponse.newBuilder()
            .setOverallCode(RateLimitResponse.Code.OVER_LIMIT)
            .addStatuses(RateLimitResponse.DescriptorStatus.newBuilder()
                .setCode(RateLimitResponse.Code.OVER_LIMIT)
                .setDurationUntilReset(com.google.protobuf.Duration.newBuilder().setSeconds(7)))
            .build();
        Verdict verdict =
            Verdict.of(CHECK, io.sluicegate.client.v1.RateLimitResponse.parseFrom(refusal.toByteArray()));
        assertEquals(Duration.ofSeconds(7), verdict.retryAfter().orElseThrow());
    }

    @Test
    void method_is_envoys_and_messages_are_not() {
        assertEquals(RateLimitServiceGrpc.getShouldRateLimitMethod().getFullMethodName(),
            SluicegateClient.SHOULD_RATE_LIMIT.getFullMethodName());
        assertNotEquals(RateLimitRequest.getDescriptor().getFullName(),
            io.sluicegate.client.v1.RateLimitRequest.getDescriptor().getFullName());
    }
}
