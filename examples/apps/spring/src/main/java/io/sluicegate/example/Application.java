package io.sluicegate.example;

import io.sluicegate.client.CheckException;
import io.sluicegate.client.Descriptor;
import io.sluicegate.client.FailureMode;
import io.sluicegate.client.RateLimitFilter;
import io.sluicegate.client.RequestValues;
import io.sluicegate.client.SluicegateClient;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;

/**
 * A web application that limits its requests with Sluicegate: by address, by the e-mail of a login, and by the tier of an
 * API key.
 */
@SpringBootApplication
public class Application {
    /** The domain of limits.yaml. */
    private static final String DOMAIN = "spring";
    private static final Logger LOGGER = LoggerFactory.getLogger(Application.class);

    @Bean
    SluicegateClient client(
            @Value("${sluicegate.target}") String target, @Value("${sluicegate.timeout}") Duration timeout) {
        return SluicegateClient.builder(target).timeout(timeout).build();
    }

    @Bean
    FilterRegistrationBean<Filter> perAddress(
            SluicegateClient client, @Value("${sluicegate.trusted-proxies}") int proxies) {
        return register(1, "/*", filter(client)
            .descriptors(r -> List.of(Descriptor.of("remote_address", RequestValues.clientIp(r, proxies))))
            .build());
    }

    @Bean
    FilterRegistrationBean<Filter> perAccount(SluicegateClient client) {
        return register(2, "/login", filter(client)
            .descriptors(r -> List.of(Descriptor.of("email", canonical(RequestValues.bodyField(r, "email")))))
            // Fails closed: without an answer, passwords could be guessed without a limit.
            .failureMode(FailureMode.CLOSED)
            .build());
    }

    private static String canonical(String email) {
        return email.strip().toLowerCase(Locale.ROOT);
    }

    @Bean
    FilterRegistrationBean<Filter> authentication() {
        return register(3, "/api/*", new Authentication());
    }

    @Bean
    FilterRegistrationBean<Filter> perKey(SluicegateClient client) {
        return register(4, "/api/*", filter(client)
            .descriptors(r -> List.of(Descriptor.of(
                "tier", Authentication.tier(r), "api_key", RequestValues.header(r, Authentication.HEADER))))
            .build());
    }

    private static RateLimitFilter.Builder filter(SluicegateClient client) {
        return RateLimitFilter.builder(client).domain(DOMAIN).onError(Application::logFailure);
    }

    private static void logFailure(HttpServletRequest request, CheckException failure) {
        LOGGER.warn("{}", failure.getMessage());
    }

    private static FilterRegistrationBean<Filter> register(int order, String pattern, Filter filter) {
        FilterRegistrationBean<Filter> registration = new FilterRegistrationBean<>(filter);
        registration.addUrlPatterns(pattern);
        registration.setOrder(order);
        return registration;
    }

    /** Starts the application. */
    public static void main(String[] arguments) {
        SpringApplication.run(Application.class, arguments);
    }
}
