package io.sluicegate.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import jakarta.servlet.http.HttpServletRequest;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class RequestValuesTest {
    /** Returns a request with the values of {@code X-Forwarded-For}. */
    private static HttpServletRequest request(String peer, List<String> forwarded) {
        return (HttpServletRequest) Proxy.newProxyInstance(RequestValuesTest.class.getClassLoader(),
            new Class<?>[] {HttpServletRequest.class}, (proxy, method, arguments) -> switch (method.getName()) {
                case "getRemoteAddr" -> peer;
                case "getHeaders" -> Collections.enumeration(forwarded);
                case "getHeader", "getRemoteUser" -> null;
                default -> throw new AssertionError(method);
            });
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', nullValues = "none", value = {
        "192.0.2.1        | none                              | 0 | 192.0.2.1",
        "192.0.2.1        | 203.0.113.7                       | 0 | 192.0.2.1",
        "192.0.2.1        | 203.0.113.7                       | 1 | 203.0.113.7",
        "192.0.2.1        | forged, 203.0.113.7               | 1 | 203.0.113.7",
        "192.0.2.1        | forged; 203.0.113.7, 10.0.0.1     | 2 | 203.0.113.7",
        "192.0.2.1        | 203.0.113.7                       | 2 | 192.0.2.1",
        "192.0.2.1        | 203.0.113.7, malformed            | 1 | 192.0.2.1",
        "192.0.2.1        | 203.0.113.7, localhost            | 1 | 192.0.2.1",
        "192.0.2.1        | 203.0.113.7,                      | 1 | 192.0.2.1",
        "192.0.2.1        | none                              | 1 | 192.0.2.1",
        "2001:db8:0:0::1  | none                              | 0 | 2001:db8::1",
        "fe80::1%eth0     | none                              | 0 | fe80::1",
        "::ffff:192.0.2.1 | none                              | 0 | 192.0.2.1",
        "192.0.2.1        | 2001:DB8:0:0::1                   | 1 | 2001:db8::1",
        "@                | none                              | 0 | @",
    })
    void client_ip_is_the_address_that_trusted_proxies_report(
            String peer, String forwarded, int trusted, String expected) {
        List<String> headers = forwarded == null ? List.of() : List.of(forwarded.split(";"));
        assertEquals(expected, RequestValues.clientIp(request(peer, headers), trusted));
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '\u0001', value = {
        "{\"email\":\"ann@example.com\",\"password\":\"x\"} | ann@example.com",
        "{\"a\":{\"email\":\"inner\"},\"email\":\"outer\"}  | outer",
        "{\"email\":\"Ann\"}                                | Ann",
        "{\"EMAIL\":\"ann\"}                                | ann",
        "{\"email\":\"ann\",\"EMAIL\":\"ann\"}              | ann",
        "{\"email\":\"ann\",\"EMAIL\":\"eve\"}              | ",
        "{\"email\":\"ann\",\"email\":\"eve\"}              | ",
        "{\"e\\u006dail\":\"ann\",\"email\":\"eve\"}        | ",
        "{\"email\":7}                                      | 7",
        "{\"email\":7,\"Email\":\"7\"}                      | ",
        "{\"email\":[\"ann\"]}                              | ",
        "{\"email\":null}                                   | ",
        "{\"email\":true}                                   | ",
        "{\"user\":\"ann\"}                                 | ",
        "{\"email\":\"ann\"                                 | ",
        "{\"email\":\"ann\"} trailing                       | ann",
        "{'email':'ann'}                                    | ",
        "[{\"email\":\"ann\"}]                              | ",
        "\"email\"                                          | ",
        "email=ann                                          | ",
    })
    void body_field_is_what_the_application_reads(String body, String expected) throws IOException {
        String value = RequestValues.jsonField(body.getBytes(StandardCharsets.UTF_8), "email");
        assertEquals(expected == null ? "" : expected, value);
    }

    @Test
    void body_field_of_other_encodings_is_empty() throws IOException {
        String body = "{\"email\":\"änn\"}";
        assertEquals("änn", RequestValues.jsonField(body.getBytes(StandardCharsets.UTF_8), "email"));
        assertEquals("", RequestValues.jsonField(body.getBytes(StandardCharsets.ISO_8859_1), "email"));
        assertEquals("", RequestValues.jsonField(body.getBytes(StandardCharsets.UTF_16), "email"));
        assertEquals("", RequestValues.jsonField(new byte[0], "email"));
        assertEquals("", RequestValues.jsonField("[".repeat(60_000).getBytes(StandardCharsets.UTF_8), "email"));
        String nested = "{\"a\":" + "[".repeat(60_000);
        assertEquals("", RequestValues.jsonField(nested.getBytes(StandardCharsets.UTF_8), "email"));
    }

    @Test
    void absent_values_are_empty() {
        HttpServletRequest request = request("192.0.2.1", List.of());
        assertEquals("", RequestValues.header(request, "X-Api-Key"));
        assertEquals("", RequestValues.user(request));
        assertThrows(IllegalArgumentException.class, () -> RequestValues.bodyField(request, "email"));
    }
}
