package io.sluicegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.sluicegate.client.Processes.Server;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;

/** Prints what a request over one connection costs, without and with the filter: {@code mvn test -Dcost}. */
@EnabledIfSystemProperty(named = "cost", matches = ".*")
class FilterCostTest {
    private static final int REQUESTS = 10_000;

    @Test
    void request_is_timed_bare_and_limited() throws Exception {
        String limits = """
            domain: shop
            descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}]
            """;
        try (Server server = Processes.serve(limits); SluicegateClient client = ClientTest.connect(server.grpc);
                Site site = new Site(null)) {
            RateLimitFilter limited = RateLimitFilter.builder(client)
                .domain("shop")
                .descriptors(request -> List.of(Descriptor.of("user", RequestValues.header(request, "User"))))
                .build();
            RateLimitFilter bare = RateLimitFilter.builder(client)
                .domain("shop").descriptors(request -> List.of()).build();
            // The first round warms up.
            for (int round = 0; round < 3; round++) {
                System.out.printf("bare %.0f µs, limited %.0f µs%n", micros(site, bare), micros(site, limited));
            }
        }
    }

    private static double micros(Site site, RateLimitFilter filter) throws Exception {
        site.filterBy(filter);
        long began = System.nanoTime();
        for (int i = 0; i < REQUESTS; i++) {
            assertEquals(200, site.get("ann").statusCode());
        }
        return (System.nanoTime() - began) / 1000.0 / REQUESTS;
    }
}
