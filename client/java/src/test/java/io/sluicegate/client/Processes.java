package io.sluicegate.client;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.Reader;
import java.io.Writer;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Real servers for the tests. */
final class Processes {
    private Processes() {
    }

    /** A process that ends with its test. */
    static final class Running implements AutoCloseable {
        private final Process process;
        final Matcher line;

        private Running(Process process, Matcher line) {
            this.process = process;
            this.line = line;
        }

        /** Stops the process without ending it. */
        void suspend() throws Exception {
            signal(process, "STOP");
        }

        @Override
        public void close() throws Exception {
            signal(process, "CONT");
            process.destroy();
            if (!process.waitFor(30, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
            }
        }
    }

    private static void signal(Process process, String signal) throws Exception {
        new ProcessBuilder("kill", "-" + signal, Long.toString(process.pid())).start().waitFor();
    }

    /** Starts a process, and waits for a line of its output. */
    static Running start(String line, List<String> command) throws IOException {
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        // The caller's settings must not leak into the server.
        builder.environment().keySet().removeIf(name -> name.startsWith("SLUICEGATE_"));
        Process process = builder.start();
        BufferedReader output = process.inputReader();
        StringBuilder printed = new StringBuilder();
        for (String text = output.readLine(); text != null; text = output.readLine()) {
            printed.append(text).append('\n');
            Matcher matcher = Pattern.compile(line).matcher(text);
            if (matcher.find()) {
                drain(output);
                return new Running(process, matcher);
            }
        }
        throw new AssertionError(command + " did not start:\n" + printed);
    }

    /** Reads the rest of an output, so that its process does not block. */
    private static void drain(Reader output) {
        Thread drain = new Thread(() -> {
            try {
                output.transferTo(Writer.nullWriter());
            } catch (IOException closed) {
                // The process ended.
            }
        });
        drain.setDaemon(true);
        drain.start();
    }

    /** A running {@code sluicegate serve}. */
    static final class Server implements AutoCloseable {
        private final Running process;
        final String grpc;
        final String http;

        private Server(Running process) {
            this.process = process;
            grpc = process.line.group(1);
            http = process.line.group(2);
        }

        /** Returns the value of a metric without labels, and -1 if there is none. */
        double metric(String name) throws Exception {
            HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + http + "/metrics")).build();
            String page = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
            return page.lines().filter(line -> line.startsWith(name + " "))
                .mapToDouble(line -> Double.parseDouble(line.substring(name.length() + 1))).findFirst().orElse(-1);
        }

        @Override
        public void close() throws Exception {
            process.close();
        }
    }

    /** Starts the real server with a limits file. */
    static Server serve(String limits, String... flags) throws IOException {
        String binary = System.getenv("SLUICEGATE_BINARY");
        Path file = Files.createTempFile("limits", ".yaml");
        Files.writeString(file, limits);
        file.toFile().deleteOnExit();
        List<String> command = new ArrayList<>(List.of(
            binary == null ? "../../target/debug/sluicegate" : binary, "serve", "--limits", file.toString(),
            "--http-listen", "127.0.0.1:0", "--admin-listen", "off", "--drain-delay", "0s"));
        command.addAll(List.of(flags));
        if (!command.contains("--grpc-listen")) {
            command.addAll(List.of("--grpc-listen", "127.0.0.1:0"));
        }
        return new Server(start("serving grpc=(\\S+) http=(\\S+)", command));
    }

    /** A server that sheds every request, because Redis does not answer the one in flight. */
    record Shedding(Running redis, Server server, SluicegateClient holder) implements AutoCloseable {
        static Shedding start(String limits) throws Exception {
            int port;
            try (ServerSocket free = new ServerSocket(0)) {
                port = free.getLocalPort();
            }
            Running redis = Processes.start("Ready to accept connections", List.of(
                "redis-server", "--port", Integer.toString(port), "--bind", "127.0.0.1", "--save", "",
                "--appendonly", "no", "--logfile", "/dev/stderr"));
            Server server = serve(limits, "--store", "redis://127.0.0.1:" + port, "--decision-timeout", "1h",
                "--max-in-flight", "1");
            until("the store to be in use", () -> metric(server, "sluicegate_store_degraded") == 0);
            redis.suspend();
            SluicegateClient holder =
                SluicegateClient.builder(server.grpc).timeout(Duration.ofHours(1)).build();
            holder.checkAsync(Check.of("shop", Descriptor.of("user", "held")));
            until("the call to be in flight", () -> metric(server, "sluicegate_requests_in_flight") == 1);
            return new Shedding(redis, server, holder);
        }

        private static double metric(Server server, String name) {
            try {
                return server.metric(name);
            } catch (Exception failure) {
                throw new AssertionError(failure);
            }
        }

        @Override
        public void close() throws Exception {
            redis.close();
            holder.close();
            server.close();
        }
    }

    /** Waits for a condition. */
    static void until(String what, BooleanSupplier condition) throws InterruptedException {
        for (int i = 0; i < 1000; i++) {
            if (condition.getAsBoolean()) {
                return;
            }
            Thread.sleep(10);
        }
        throw new AssertionError("waited in vain for " + what);
    }
}
