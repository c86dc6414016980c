package io.sluicegate.example;

import io.sluicegate.client.RequestValues;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.Map;

/** Answers 401 without a valid API key. The tier comes from here and never from the client. */
final class Authentication extends HttpFilter {
    static final String HEADER = "X-Api-Key";

    private static final long serialVersionUID = 1;
    private static final String TIER = Authentication.class.getName() + ".tier";

    /** The tier of each API key. A real application looks it up where it has its customers. */
    private static final Map<String, String> TIERS =
        Map.of("key-of-ann", "free", "key-of-bob", "pro", "key-of-acme", "enterprise");

    @Override
    protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
            throws IOException, ServletException {
        String tier = TIERS.get(RequestValues.header(request, HEADER));
        if (tier == null) {
            response.sendError(HttpServletResponse.SC_UNAUTHORIZED, "an API key is needed");
            return;
        }
        request.setAttribute(TIER, tier);
        chain.doFilter(request, response);
    }

    static String tier(HttpServletRequest request) {
        return (String) request.getAttribute(TIER);
    }
}
