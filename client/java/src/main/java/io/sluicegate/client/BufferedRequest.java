package io.sluicegate.client;

import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Locale;

/** A request whose body is read in part, and still whole for the rest of the chain. */
final class BufferedRequest extends HttpServletRequestWrapper {
    /** The longest body that a field is read from. */
    private static final int BODY_MAX = 64 * 1024;

    private byte[] start;
    private ServletInputStream input;
    private BufferedReader reader;

    BufferedRequest(HttpServletRequest request) {
        super(request);
    }

    /** Returns the body, or nothing if it is longer than {@link #BODY_MAX} or a form. */
    byte[] start() throws IOException {
        if (isForm()) {
            // The container reads it for the parameters.
            return new byte[0];
        }
        if (start == null) {
            ServletInputStream body = super.getInputStream();
            start = body.readNBytes(BODY_MAX + 1);
            input = new Replay(start, body);
        }
        return start.length > BODY_MAX ? new byte[0] : start;
    }

    private boolean isForm() {
        String type = getContentType();
        String lowered = type == null ? "" : type.strip().toLowerCase(Locale.ROOT);
        return lowered.startsWith("application/x-www-form-urlencoded") || lowered.startsWith("multipart/form-data");
    }

    @Override
    public ServletInputStream getInputStream() throws IOException {
        if (input == null) {
            return super.getInputStream();
        }
        if (reader != null) {
            throw new IllegalStateException("getReader was called before");
        }
        return input;
    }

    @Override
    public BufferedReader getReader() throws IOException {
        if (input == null) {
            return super.getReader();
        }
        if (reader == null) {
            String encoding = getCharacterEncoding();
            // The default of servlets.
            reader = new BufferedReader(
                new InputStreamReader(input, encoding == null ? StandardCharsets.ISO_8859_1.name() : encoding));
        }
        return reader;
    }

    /** The start of a body, and then the rest of it. */
    private static final class Replay extends ServletInputStream {
        private final ByteArrayInputStream start;
        private final ServletInputStream rest;

        Replay(byte[] start, ServletInputStream rest) {
            this.start = new ByteArrayInputStream(start);
            this.rest = rest;
        }

        @Override
        public int read() throws IOException {
            int next = start.read();
            return next >= 0 ? next : rest.read();
        }

        @Override
        public int read(byte[] buffer, int offset, int length) throws IOException {
            int count = start.read(buffer, offset, length);
            return count >= 0 ? count : rest.read(buffer, offset, length);
        }

        @Override
        public int available() throws IOException {
            return start.available() > 0 ? start.available() : rest.available();
        }

        @Override
        public boolean isFinished() {
            return start.available() == 0 && rest.isFinished();
        }

        @Override
        public boolean isReady() {
            return start.available() > 0 || rest.isReady();
        }

        @Override
        public void setReadListener(ReadListener listener) {
            throw new IllegalStateException("the body can only be read by blocking reads after bodyField");
        }
    }
}
