package sluicegate_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	sluicegate "github.com/sluicegate/sluicegate/client/go"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

func TestClientIPIsTheAddressThatTrustedProxiesReport(t *testing.T) {
	for _, c := range []struct {
		peer      string
		forwarded []string
		trusted   int
		want      string
	}{
		{"192.0.2.1:4711", nil, 0, "192.0.2.1"},
		{"192.0.2.1:4711", []string{"203.0.113.7"}, 0, "192.0.2.1"},
		{"192.0.2.1:4711", []string{"203.0.113.7"}, 1, "203.0.113.7"},
		{"192.0.2.1:4711", []string{"forged, 203.0.113.7"}, 1, "203.0.113.7"},
		{"192.0.2.1:4711", []string{"forged", "203.0.113.7, 10.0.0.1"}, 2, "203.0.113.7"},
		{"192.0.2.1:4711", []string{"203.0.113.7"}, 2, "192.0.2.1"},
		{"192.0.2.1:4711", []string{"203.0.113.7, malformed"}, 1, "192.0.2.1"},
		{"192.0.2.1:4711", nil, 1, "192.0.2.1"},
		{"[2001:db8::1]:4711", nil, 0, "2001:db8::1"},
		{"[fe80::1%eth0]:4711", nil, 0, "fe80::1"},
		{"[::ffff:192.0.2.1]:4711", nil, 0, "192.0.2.1"},
		{"192.0.2.1:4711", []string{"2001:DB8:0:0::1"}, 1, "2001:db8::1"},
		{"@", nil, 0, "@"},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.forwarded}}
		if ip := sluicegate.ClientIP(r, c.trusted); ip != c.want {
			t.Errorf("%s %q behind %d: %s, want %s", c.peer, c.forwarded, c.trusted, ip, c.want)
		}
		address, err := net.ResolveTCPAddr("tcp", c.peer)
		if err != nil {
			continue
		}
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: address})
		ctx = metadata.NewIncomingContext(ctx, metadata.MD{"x-forwarded-for": c.forwarded})
		if ip := sluicegate.GRPCClientIP(ctx, c.trusted); ip != c.want {
			t.Errorf("gRPC %s %q behind %d: %s, want %s", c.peer, c.forwarded, c.trusted, ip, c.want)
		}
	}
}

func TestBodyFieldIsWhatTheHandlerReads(t *testing.T) {
	for body, want := range map[string]string{
		`{"email":"ann@example.com","password":"x"}`: "ann@example.com",
		`{"a":{"email":"inner"},"email":"outer"}`:    "outer",
		`{"email":"Ann"}`:                            "Ann",
		`{"EMAIL":"ann"}`:                            "ann",
		`{"email":"ann","EMAIL":"ann"}`:              "ann",
		`{"email":"ann","EMAIL":"eve"}`:              "",
		`{"email":"ann","email":"eve"}`:              "",
		`{"email":7}`:                                "7",
		`{"email":7,"Email":"7"}`:                    "",
		`{"email":["ann"]}`:                          "",
		`{"email":null}`:                             "",
		`{"email":"ann"`:                             "",
		`{"email":"ann",`:                            "",
		`["email","ann"]`:                            "",
		`"email"`:                                    "",
		`{}`:                                         "",
		``:                                           "",
		`{"email":"` + strings.Repeat("x", 65536) + `"}`: "",
	} {
		r, err := http.NewRequest(http.MethodPost, "/login", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if field := sluicegate.BodyField(r, "email"); field != want {
			t.Errorf("%.40s: %q, want %q", body, field, want)
		}
		if r.Body == nil {
			continue
		}
		if rest, err := io.ReadAll(r.Body); err != nil || string(rest) != body {
			t.Errorf("%.40s: the handler reads %.40q, %v", body, rest, err)
		}
	}
}

func TestBodyThatBreaksOffBreaksForTheHandler(t *testing.T) {
	broken := errors.New("broken")
	body := io.MultiReader(strings.NewReader(`{"email":"ann"}`), failing{broken})
	r, err := http.NewRequest(http.MethodPost, "/", body)
	if err != nil {
		t.Fatal(err)
	}
	if field := sluicegate.BodyField(r, "email"); field != "" {
		t.Fatal(field)
	}
	start, err := io.ReadAll(r.Body)
	expectError(t, err, broken)
	if string(start) != `{"email":"ann"}` {
		t.Fatalf("the handler reads %q", start)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
