package io.sluicegate.client;

import com.google.protobuf.UInt32Value;
import com.google.protobuf.UInt64Value;
import io.sluicegate.client.v1.RateLimitDescriptor;
import io.sluicegate.client.v1.RateLimitRequest;

/** Messages of the service from checks. */
final class Messages {
    private static final long UINT32_MAX = 0xFFFF_FFFFL;

    private Messages() {
    }

    static RateLimitRequest request(Check check) {
        RateLimitRequest.Builder request = RateLimitRequest.newBuilder().setDomain(text(check.domain()));
        // The request has a number of hits where 0 means unset. Peeks, refunds and very many hits are set on each
        // descriptor.
        Hits hits = check.hits();
        Hits inherited = hits;
        if (!hits.isRefund() && hits.count() > 0 && hits.count() <= UINT32_MAX) {
            request.setHitsAddend((int) hits.count());
            inherited = null;
        }
        for (Descriptor descriptor : check.descriptors()) {
            request.addDescriptors(message(descriptor, descriptor.hits().orElse(inherited)));
        }
        return request.build();
    }

    private static RateLimitDescriptor message(Descriptor descriptor, Hits hits) {
        RateLimitDescriptor.Builder message = RateLimitDescriptor.newBuilder();
        for (Entry entry : descriptor.entries()) {
            message.addEntriesBuilder().setKey(text(entry.key())).setValue(text(entry.value()));
        }
        if (hits != null) {
            message.setHitsAddend(UInt64Value.of(hits.count())).setIsNegativeHits(hits.isRefund());
        }
        descriptor.limitOverride().ifPresent(limit -> {
            RateLimitDescriptor.RateLimitOverride.Builder override = message.getLimitBuilder()
                .setRequestsPerUnit((int) limit.requestsPerUnit())
                .setUnitValue(limit.unit().number());
            if (limit.unitMultiplier() > 1) {
                override.setUnitMultiplier(UInt32Value.of((int) limit.unitMultiplier()));
            }
        });
        return message.build();
    }

    /**
     * Returns what UTF-8 can carry. Remote callers can send unpaired surrogates, for example as {@code \ud800}
     * in JSON.
     */
    private static String text(String text) {
        for (int i = 0; i < text.length(); i++) {
            if (Character.isSurrogate(text.charAt(i))) {
                return text.codePoints()
                    .map(c -> Character.MIN_SURROGATE <= c && c <= Character.MAX_SURROGATE ? 0xFFFD : c)
                    .collect(StringBuilder::new, StringBuilder::appendCodePoint, StringBuilder::append)
                    .toString();
            }
        }
        return text;
    }
}
