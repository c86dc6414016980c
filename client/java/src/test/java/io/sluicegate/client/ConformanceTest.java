package io.sluicegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonSyntaxException;
import com.google.protobuf.util.JsonFormat;
import io.sluicegate.client.v1.RateLimitResponse;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** The cases of client/conformance/answers.json; see the page beside it. */
class ConformanceTest {
    private static final AtomicReference<RateLimitResponse> ANSWER = new AtomicReference<>();
    private static Scripted service;
    private static SluicegateClient client;
    private static Site site;

    @BeforeAll
    static void start() throws Exception {
        service = Scripted.start(request -> ANSWER.get());
        client = SluicegateClient.builder(service.address()).timeout(Duration.ofSeconds(30)).build();
        site = new Site(null);
    }

    @AfterAll
    static void stop() throws Exception {
        site.close();
        client.close();
        service.close();
    }

    static Stream<Arguments> vectors() throws Exception {
        JsonElement file = JsonParser.parseString(Files.readString(Path.of("../conformance/answers.json")));
        return StreamSupport.stream(file.getAsJsonArray().spliterator(), false)
            .map(JsonElement::getAsJsonObject)
            .map(vector -> Arguments.of(vector.get("name").getAsString(), vector));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("vectors")
    void answers_have_verdicts(String name, JsonObject vector) throws Exception {
        RateLimitResponse.Builder answer = RateLimitResponse.newBuilder();
        JsonFormat.parser().merge(vector.get("answer").toString(), answer);
        ANSWER.set(answer.build());
        List<Descriptor> descriptors = new ArrayList<>();
        for (JsonElement isOverridden : vector.getAsJsonArray("overrides")) {
            Descriptor plain = Descriptor.of("key", "value");
            descriptors.add(isOverridden.getAsBoolean()
                ? plain.withOverride(LimitOverride.of(5, Duration.ofMinutes(15))) : plain);
        }
        expectVerdict(vector, descriptors);
        expectHttp(vector.getAsJsonObject("http"), descriptors);
    }

    private static void expectVerdict(JsonObject vector, List<Descriptor> descriptors) {
        JsonObject expected = vector.getAsJsonObject("verdict");
        Check check = Check.of("domain", descriptors);
        if (expected.has("error")) {
            assertEquals("override_not_applied", expected.get("error").getAsString());
            CheckException failure = assertThrows(CheckException.class, () -> client.check(check));
            assertEquals(CheckException.Kind.OVERRIDE_NOT_APPLIED, failure.kind());
            return;
        }
        Verdict verdict = client.check(check);
        assertEquals(expected.get("allowed").getAsBoolean(), verdict.isAllowed());
        JsonElement millis = vector.get("retryAfterMs");
        assertEquals(millis.isJsonNull() ? null : millis.getAsLong(),
            verdict.retryAfter().map(Duration::toMillis).orElse(null));
    }

    private static void expectHttp(JsonObject expected, List<Descriptor> descriptors) throws Exception {
        site.filterBy(RateLimitFilter.builder(client)
            .domain("domain")
            .descriptors(request -> descriptors)
            .failureMode(FailureMode.CLOSED)
            .build());
        HttpResponse<String> response = site.get("ann");
        assertEquals(expected.get("status").getAsInt(), response.statusCode());
        for (Map.Entry<String, JsonElement> header : expected.getAsJsonObject("headers").entrySet()) {
            List<String> values = response.headers().allValues(header.getKey());
            // Tomcat writes the parameters of a content type without a space.
            List<String> wanted = header.getValue().isJsonNull() ? List.of()
                : List.of(header.getValue().getAsString().replace("; charset", ";charset"));
            assertEquals(wanted, values, header.getKey());
        }
        if (!expected.get("body").isJsonNull()) {
            assertEquals(json(expected.get("body").getAsString()), json(response.body()));
        }
    }

    /** What is JSON is compared as JSON. */
    private static Object json(String body) {
        try {
            return JsonParser.parseString(body);
        } catch (JsonSyntaxException text) {
            return body;
        }
    }
}
