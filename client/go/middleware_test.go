package sluicegate_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	sluicegate "github.com/sluicegate/sluicegate/client/go"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// user limits requests by the header User; requests without one are not limited.
func user(r *http.Request) []sluicegate.Descriptor {
	if name := r.Header.Get("User"); name != "" {
		return []sluicegate.Descriptor{sluicegate.NewDescriptor("user", name)}
	}
	return nil
}

// site starts a web site behind a middleware, until the test ends. It counts what reaches its handler.
func site(t *testing.T, client *sluicegate.Client, o sluicegate.HTTPOptions) (url string, handled *atomic.Int64) {
	t.Helper()
	handled = &atomic.Int64{}
	server := httptest.NewServer(client.Middleware(o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handled.Add(1)
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})))
	t.Cleanup(server.Close)
	return server.URL, handled
}

func get(t *testing.T, url, user string) *http.Response {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("User", user)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response
}

func TestMiddlewareRefusesWithRetryAfterAndHeaders(t *testing.T) {
	client := connect(t, serve(t, limits, "--response-headers", "x-ratelimit-draft-03").grpc)
	url, handled := site(t, client, sluicegate.HTTPOptions{Domain: "shop", Descriptors: user})
	for range 5 {
		response := get(t, url, "ann")
		if response.StatusCode != 200 || response.Header.Get("X-Ratelimit-Limit") == "" {
			t.Fatalf("%s %v", response.Status, response.Header)
		}
	}
	response := get(t, url, "ann")
	if response.StatusCode != 429 || len(response.Header.Values("Retry-After")) != 1 ||
		response.Header.Get("X-Ratelimit-Remaining") != "0" {
		t.Fatalf("%s %v", response.Status, response.Header)
	}
	if get(t, url, "eve").StatusCode != 200 || get(t, url, "").StatusCode != 200 {
		t.Fatal("others are refused")
	}
	if n := handled.Load(); n != 7 {
		t.Fatalf("the handler ran %d times", n)
	}
}

func TestMiddlewareOptions(t *testing.T) {
	client := connect(t, serve(t, limits).grpc)
	url, _ := site(t, client, sluicegate.HTTPOptions{
		Domain:      "shop",
		Descriptors: user,
		Hits:        func(*http.Request) sluicegate.Hits { return sluicegate.Charge(5) },
		Skip:        func(r *http.Request) bool { return r.URL.Path == "/healthz" },
		OnLimited: func(w http.ResponseWriter, _ *http.Request, verdict *sluicegate.Verdict) {
			w.WriteHeader(http.StatusTeapot)
		},
	})
	for _, want := range []int{200, http.StatusTeapot} {
		response := get(t, url, "ann")
		if response.StatusCode != want || want != 200 && response.Header.Get("Retry-After") == "" {
			t.Fatalf("%s %v", response.Status, response.Header)
		}
	}
	if response := get(t, url+"/healthz", "ann"); response.StatusCode != 200 {
		t.Fatal(response.Status)
	}
	for _, incomplete := range []sluicegate.HTTPOptions{{Domain: "shop"}, {Descriptors: user}} {
		expectPanic(t, func() { client.Middleware(incomplete) })
	}
}

func TestFailureModeDecidesWithoutAnAnswer(t *testing.T) {
	unknown := func(r *http.Request) []sluicegate.Descriptor {
		descriptors := user(r)
		descriptors[0].Override = sluicegate.NewOverride(5, time.Minute)
		return descriptors
	}
	known := connect(t, serve(t, limits).grpc)
	for _, failure := range []struct {
		client      *sluicegate.Client
		descriptors func(*http.Request) []sluicegate.Descriptor
		kind        error
	}{
		{connect(t, "127.0.0.1:1"), user, sluicegate.ErrUnavailable},
		{known, unknown, sluicegate.ErrOverrideNotApplied},
	} {
		for mode, want := range map[sluicegate.FailureMode]int{
			sluicegate.FailureModeOpen:   200,
			sluicegate.FailureModeClosed: 503,
		} {
			var reported atomic.Pointer[error]
			url, _ := site(t, failure.client, sluicegate.HTTPOptions{
				Domain:      "unknown",
				Descriptors: failure.descriptors,
				FailureMode: mode,
				OnError:     func(_ *http.Request, err error) { reported.Store(&err) },
			})
			if response := get(t, url, "ann"); response.StatusCode != want {
				t.Fatalf("%v: %s, want %d", failure.kind, response.Status, want)
			}
			expectError(t, *reported.Load(), failure.kind)
		}
	}
}

func TestShedRequestIsRefusedWithFailureModeOpen(t *testing.T) {
	overridden := func(r *http.Request) []sluicegate.Descriptor {
		descriptors := user(r)
		descriptors[0].Override = sluicegate.NewOverride(5, time.Minute)
		return descriptors
	}
	client := connect(t, shedding(t))
	for _, descriptors := range []func(*http.Request) []sluicegate.Descriptor{user, overridden} {
		url, handled := site(t, client, sluicegate.HTTPOptions{Domain: "shop", Descriptors: descriptors})
		if response := get(t, url, "ann"); response.StatusCode != 429 || handled.Load() != 0 {
			t.Fatal(response.Status)
		}
	}
}

// A client that disconnects during the check must not pass by the failure mode.
func TestRequestOfADisconnectedClientIsChecked(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	client := connect(t, script(t, func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		close(asked)
		<-answer
		return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OVER_LIMIT}, nil
	}))
	limited := make(chan struct{})
	url, handled := site(t, client, sluicegate.HTTPOptions{
		Domain:      "shop",
		Descriptors: user,
		OnLimited: func(_ http.ResponseWriter, r *http.Request, _ *sluicegate.Verdict) {
			<-r.Context().Done()
			close(limited)
		},
	})
	connection, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(connection, "GET / HTTP/1.1\r\nHost: x\r\nUser: ann\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-asked
	_ = connection.Close()
	close(answer)
	<-limited
	if handled.Load() != 0 {
		t.Fatal("the handler ran")
	}
}

func TestBodyIsReadForItsFieldAndByTheHandler(t *testing.T) {
	client := connect(t, serve(t, limits).grpc)
	url, _ := site(t, client, sluicegate.HTTPOptions{
		Domain: "shop",
		Descriptors: func(r *http.Request) []sluicegate.Descriptor {
			return []sluicegate.Descriptor{sluicegate.NewDescriptor("user", sluicegate.BodyField(r, "email"))}
		},
	})
	for _, body := range []string{`{"email": "ann@example.com"}`, strings.Repeat("x", 100<<10)} {
		response, err := http.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		echo, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(echo) != body {
			t.Fatalf("the handler read %d bytes, %v", len(echo), err)
		}
	}
	for user, want := range map[string]uint32{"ann@example.com": 4, "": 4} {
		if n := remaining(t, client, of("user", user)); n != want {
			t.Fatalf("%q: %d remaining", user, n)
		}
	}
}

// byMetadata limits calls by their metadata "user".
func byMetadata(ctx context.Context, _ string, _ any) []sluicegate.Descriptor {
	if user := metadata.ValueFromIncomingContext(ctx, "user"); len(user) == 1 {
		return []sluicegate.Descriptor{sluicegate.NewDescriptor("user", user[0])}
	}
	return nil
}

type healthy struct {
	healthpb.UnimplementedHealthServer
}

func (healthy) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func (healthy) Watch(_ *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	return stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING})
}

// intercepted starts a gRPC service behind the interceptors, until the test ends.
func intercepted(t *testing.T, client *sluicegate.Client, o sluicegate.GRPCOptions) healthpb.HealthClient {
	t.Helper()
	address := listen(t, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, healthy{}) },
		grpc.UnaryInterceptor(client.UnaryServerInterceptor(o)),
		grpc.StreamInterceptor(client.StreamServerInterceptor(o)))
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return healthpb.NewHealthClient(connection)
}

// unary and stream make a call each, and return its metadata.
func unary(ctx context.Context, client healthpb.HealthClient) (header, trailer metadata.MD, err error) {
	_, err = client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	return header, trailer, err
}

func stream(ctx context.Context, client healthpb.HealthClient) (header, trailer metadata.MD, err error) {
	watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return nil, nil, err
	}
	for err == nil {
		_, err = watch.Recv()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	header, _ = watch.Header()
	return header, watch.Trailer(), err
}

func TestInterceptorsRefuseWithRetryInfo(t *testing.T) {
	client := connect(t, serve(t, limits, "--response-headers", "x-ratelimit-draft-03").grpc)
	service := intercepted(t, client, sluicegate.GRPCOptions{Domain: "shop", Descriptors: byMetadata})
	for name, call := range map[string]func(context.Context, healthpb.HealthClient) (metadata.MD, metadata.MD, error){
		"unary": unary, "stream": stream,
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "user", name)
		for range 5 {
			if header, _, err := call(ctx, service); err != nil || len(header["x-ratelimit-limit"]) != 1 {
				t.Fatalf("%s: %v %v", name, err, header)
			}
		}
		header, trailer, err := call(ctx, service)
		if status.Code(err) != codes.ResourceExhausted || len(trailer["retry-after"]) != 1 {
			t.Fatalf("%s: %v %v", name, err, trailer)
		}
		if len(header["x-ratelimit-limit"]) != 1 {
			t.Fatalf("%s: header %v", name, header)
		}
		details := status.Convert(err).Details()
		if info, ok := details[0].(*errdetails.RetryInfo); !ok || info.GetRetryDelay().AsDuration() <= 0 {
			t.Fatalf("%s: details %v", name, details)
		}
		if _, _, err := call(t.Context(), service); err != nil {
			t.Fatalf("%s: a call without descriptors: %v", name, err)
		}
	}
}

func TestInterceptorOptions(t *testing.T) {
	client := connect(t, serve(t, limits).grpc)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "user", "ann")
	o := sluicegate.GRPCOptions{
		Domain:      "shop",
		Descriptors: byMetadata,
		Hits:        func(context.Context, string, any) sluicegate.Hits { return sluicegate.Charge(6) },
		Skip: func(_ context.Context, method string) bool {
			return method == healthpb.Health_Watch_FullMethodName
		},
		OnLimited: func(context.Context, string, *sluicegate.Verdict) error {
			return status.Error(codes.Aborted, "mine")
		},
	}
	service := intercepted(t, client, o)
	if _, _, err := unary(ctx, service); status.Code(err) != codes.Aborted {
		t.Fatal(err)
	}
	if _, _, err := stream(ctx, service); err != nil {
		t.Fatal(err)
	}
	o.OnLimited = func(context.Context, string, *sluicegate.Verdict) error { return nil }
	if _, _, err := unary(ctx, intercepted(t, client, o)); status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
	for mode, want := range map[sluicegate.FailureMode]codes.Code{
		sluicegate.FailureModeOpen:   codes.OK,
		sluicegate.FailureModeClosed: codes.Unavailable,
	} {
		var failures atomic.Int64
		service := intercepted(t, connect(t, "127.0.0.1:1"), sluicegate.GRPCOptions{
			Domain:      "shop",
			Descriptors: byMetadata,
			FailureMode: mode,
			OnError:     func(context.Context, string, error) { failures.Add(1) },
		})
		if _, _, err := unary(ctx, service); status.Code(err) != want {
			t.Fatal(err)
		}
		if _, _, err := stream(ctx, service); status.Code(err) != want || failures.Load() != 2 {
			t.Fatal(err, failures.Load())
		}
	}
	expectPanic(t, func() { client.UnaryServerInterceptor(sluicegate.GRPCOptions{Domain: "shop"}) })
	expectPanic(t, func() { client.StreamServerInterceptor(sluicegate.GRPCOptions{Descriptors: byMetadata}) })
}

func expectPanic(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	f()
}
