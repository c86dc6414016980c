package sluicegate

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// maxBodyBytes is how much of a body BodyField reads.
const maxBodyBytes = 64 << 10

// ClientIP returns the IP address of the client of a request that came through this number of trusted proxies, each of
// which appends the address of its peer to X-Forwarded-For. Without trusted proxies, or if the header is shorter or
// malformed, it is the address of the peer. More proxies than there are let clients choose their address.
func ClientIP(r *http.Request, trustedProxies int) string {
	return clientIP(r.RemoteAddr, r.Header.Values("X-Forwarded-For"), trustedProxies)
}

// GRPCClientIP is [ClientIP] for the context of a gRPC call.
func GRPCClientIP(ctx context.Context, trustedProxies int) string {
	var address string
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	return clientIP(address, metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"), trustedProxies)
}

func clientIP(peer string, forwarded []string, trustedProxies int) string {
	if trustedProxies > 0 {
		addresses := strings.Split(strings.Join(forwarded, ","), ",")
		if n := len(addresses) - trustedProxies; n >= 0 {
			if ip, err := netip.ParseAddr(strings.TrimSpace(addresses[n])); err == nil {
				return canonical(ip)
			}
		}
	}
	if address, err := netip.ParseAddrPort(peer); err == nil {
		return canonical(address.Addr())
	}
	return peer // a unix socket
}

// canonical returns one text for one address.
func canonical(ip netip.Addr) string {
	return ip.Unmap().WithZone("").String()
}

// BodyField returns a field of the JSON object in a request's body, such as the e-mail of a login, and leaves the
// whole body for the handler. It returns "" if the body is larger than 64 KiB or not a JSON object, if the field is
// absent or neither a text nor a number, and if the body has several values for it, of which the handler might read
// another: like encoding/json it ignores the case of names.
func BodyField(r *http.Request, name string) string {
	if r.Body == nil || r.Body == http.NoBody {
		return ""
	}
	start, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes+1))
	rest := io.Reader(r.Body)
	if err != nil {
		rest = failingReader{err}
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), rest), r.Body}
	if err != nil || len(start) > maxBodyBytes {
		return ""
	}
	return jsonField(start, name)
}

func jsonField(body []byte, name string) string {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return ""
	}
	var found any
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return ""
		}
		var value any
		if err := decoder.Decode(&value); err != nil {
			return ""
		}
		if key, ok := key.(string); !ok || !strings.EqualFold(key, name) {
			continue
		}
		switch value.(type) {
		case string, json.Number:
		default:
			return ""
		}
		if found != nil && found != value {
			return ""
		}
		found = value
	}
	if _, err := decoder.Token(); err != nil { // the closing brace
		return ""
	}
	switch value := found.(type) {
	case string:
		return value
	case json.Number:
		return value.String()
	}
	return ""
}

// failingReader repeats the error that ended a body.
type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }
