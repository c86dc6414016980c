package io.sluicegate.client;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpFilter;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.catalina.Context;
import org.apache.catalina.startup.Tomcat;
import org.apache.tomcat.util.descriptor.web.FilterDef;
import org.apache.tomcat.util.descriptor.web.FilterMap;

/** A web site that echoes bodies, behind a filter. */
final class Site implements AutoCloseable {
    private static final Logger TOMCAT = Logger.getLogger("org.apache");
    private static final HttpClient HTTP = HttpClient.newHttpClient();

    static {
        TOMCAT.setLevel(Level.SEVERE);
    }

    private final Tomcat tomcat = new Tomcat();
    private volatile Filter filter;
    /** Requests that reached the servlet. */
    final AtomicInteger handled = new AtomicInteger();

    Site(Filter filter) throws Exception {
        this.filter = filter;
        tomcat.setBaseDir(Files.createTempDirectory("tomcat").toString());
        tomcat.setPort(0);
        Context context = tomcat.addContext("", null);
        Tomcat.addServlet(context, "echo", new HttpServlet() {
            @Override
            protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
                handled.incrementAndGet();
                request.getInputStream().transferTo(response.getOutputStream());
            }
        });
        context.addServletMappingDecoded("/", "echo");
        FilterDef definition = new FilterDef();
        definition.setFilterName("limit");
        definition.setFilter(new HttpFilter() {
            @Override
            protected void doFilter(HttpServletRequest request, HttpServletResponse response, FilterChain chain)
                    throws IOException, ServletException {
                Site.this.filter.doFilter(request, response, chain);
            }
        });
        context.addFilterDef(definition);
        FilterMap map = new FilterMap();
        map.setFilterName("limit");
        map.addURLPattern("/*");
        context.addFilterMap(map);
        tomcat.getConnector();
        tomcat.start();
    }

    void filterBy(Filter other) {
        filter = other;
    }

    HttpResponse<String> get(String user) throws Exception {
        return send(HttpRequest.newBuilder(url("/")).header("User", user));
    }

    URI url(String path) {
        return URI.create("http://127.0.0.1:" + tomcat.getConnector().getLocalPort() + path);
    }

    static HttpResponse<String> send(HttpRequest.Builder request) throws Exception {
        return HTTP.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    @Override
    public void close() throws Exception {
        tomcat.stop();
        tomcat.destroy();
    }
}
