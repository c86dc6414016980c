package io.sluicegate.client;

import com.google.common.net.InetAddresses;
import com.google.gson.Strictness;
import com.google.gson.stream.JsonReader;
import com.google.gson.stream.JsonToken;
import com.google.gson.stream.MalformedJsonException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletRequestWrapper;
import jakarta.servlet.http.HttpServletRequest;
import java.io.ByteArrayInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Collections;

/** Values of requests, for the descriptors of a {@link RateLimitFilter}. */
public final class RequestValues {
    private RequestValues() {
    }

    /**
     * Returns the IP address of the client of a request that came through this number of trusted proxies, each of which
     * appends the address of its peer to {@code X-Forwarded-For}. More proxies than there are let clients choose their
     * address.
     *
     * @param request the request
     * @param trustedProxies the number of proxies; 0 if the container itself evaluates the header
     * @return the address; without trusted proxies, or if the header is shorter or malformed, that of the peer
     */
    public static String clientIp(HttpServletRequest request, int trustedProxies) {
        String peer = request.getRemoteAddr();
        if (trustedProxies > 0) {
            String forwarded = String.join(",", Collections.list(request.getHeaders("X-Forwarded-For")));
            String[] addresses = forwarded.split(",", -1);
            if (addresses.length >= trustedProxies) {
                return canonical(addresses[addresses.length - trustedProxies].strip(), canonical(peer, peer));
            }
        }
        return canonical(peer, peer);
    }

    /** Returns one text for one address, and {@code otherwise} for a text that is none. Never asks DNS. */
    private static String canonical(String text, String otherwise) {
        if (text == null) {
            return "";
        }
        int zone = text.indexOf('%');
        String address = zone < 0 ? text : text.substring(0, zone);
        if (!InetAddresses.isInetAddress(address)) {
            return otherwise;
        }
        InetAddress parsed = InetAddresses.forString(address);
        return InetAddresses.toAddrString(parsed);
    }

    /**
     * Returns a header, such as an API key.
     *
     * @param request the request
     * @param name the name of the header
     * @return the value; empty if the header is absent
     */
    public static String header(HttpServletRequest request, String name) {
        String value = request.getHeader(name);
        return value == null ? "" : value;
    }

    /**
     * Returns the user that the container or a filter before this one authenticated.
     *
     * @param request the request
     * @return the name; empty without authentication
     */
    public static String user(HttpServletRequest request) {
        String user = request.getRemoteUser();
        return user == null ? "" : user;
    }

    /**
     * Returns a field of the JSON object in a request's body, such as the e-mail of a login, and leaves the whole
     * body for the rest of the chain. The rest of the chain can then read the body only by blocking reads. The body of
     * a form is not read: see {@link HttpServletRequest#getParameter} for its fields.
     *
     * @param request the request that the {@link RateLimitFilter} passes to the function
     * @param name the name of the field; its case is ignored
     * @return the text or number; empty if the body is larger than 64 KiB or not a JSON object, if the field is absent
     *     or neither a text nor a number, and if the body has several values for it, of which the application might
     *     read another
     * @throws UncheckedIOException if the body cannot be read
     */
    public static String bodyField(HttpServletRequest request, String name) {
        ServletRequest inner = request;
        while (!(inner instanceof BufferedRequest buffered)) {
            if (!(inner instanceof ServletRequestWrapper wrapper)) {
                throw new IllegalArgumentException("bodyField needs the request of a RateLimitFilter");
            }
            inner = wrapper.getRequest();
        }
        try {
            return jsonField(buffered.start(), name);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** Returns a field of a JSON object in UTF-8; empty as {@link #bodyField} describes. */
    static String jsonField(byte[] body, String name) throws IOException {
        var text = new InputStreamReader(new ByteArrayInputStream(body), StandardCharsets.UTF_8.newDecoder());
        try (JsonReader reader = new JsonReader(text)) {
            reader.setStrictness(Strictness.STRICT);
            return field(reader, name);
        } catch (MalformedJsonException | EOFException | CharacterCodingException | IllegalStateException notAnObject) {
            return "";
        }
    }

    private static String field(JsonReader reader, String name) throws IOException {
        String found = null;
        JsonToken type = null;
        reader.beginObject();
        while (reader.hasNext()) {
            if (!reader.nextName().equalsIgnoreCase(name)) {
                reader.skipValue();
                continue;
            }
            JsonToken token = reader.peek();
            if (token != JsonToken.STRING && token != JsonToken.NUMBER) {
                return "";
            }
            String value = reader.nextString();
            if (found != null && (token != type || !found.equals(value))) {
                return "";
            }
            found = value;
            type = token;
        }
        reader.endObject();
        return found == null ? "" : found;
    }
}
