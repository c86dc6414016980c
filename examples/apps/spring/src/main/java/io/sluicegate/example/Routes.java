package io.sluicegate.example;

import jakarta.servlet.http.HttpServletRequest;
import org.springframework.http.HttpStatus;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;

/** The routes of the application. */
@RestController
class Routes {
    record Attempt(String email, String password) {
    }

    @GetMapping("/")
    String home() {
        return "hello\n";
    }

    /** Rejects every attempt, because the example has no accounts. */
    @PostMapping("/login")
    String login(@RequestBody Attempt attempt) {
        throw new ResponseStatusException(HttpStatus.FORBIDDEN, "wrong e-mail or password");
    }

    @GetMapping("/api")
    String api(HttpServletRequest request) {
        return "tier " + Authentication.tier(request) + "\n";
    }
}
