package sluicegate_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	sluicegate "github.com/sluicegate/sluicegate/client/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const limits = `
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per_user, unit: day, requests_per_unit: 5}
  - key: tier
    value: enterprise
    rate_limit: {unlimited: true}
`

// of returns a check of one entry in the domain of the limits.
func of(key, value string) sluicegate.Check {
	return sluicegate.Check{
		Domain:      "shop",
		Descriptors: []sluicegate.Descriptor{sluicegate.NewDescriptor(key, value)},
	}
}

func TestChecksChargePeekAndRefund(t *testing.T) {
	client := connect(t, serve(t, limits).grpc)
	ann := of("user", "ann")
	if verdict := check(t, client, ann); !verdict.Allowed || verdict.Statuses[0].Remaining != 4 {
		t.Fatalf("first check: %+v", verdict)
	}
	limit := check(t, client, of("user", "eve")).Statuses[0].Limit
	want := sluicegate.Limit{Name: "per_user", RequestsPerUnit: 5, Unit: sluicegate.Day, UnitMultiplier: 1}
	if limit == nil || *limit != want {
		t.Fatalf("limit %+v, want %+v", limit, want)
	}
	ann.Hits = sluicegate.Charge(4)
	if verdict := check(t, client, ann); !verdict.Allowed {
		t.Fatalf("four more hits: %+v", verdict)
	}
	ann.Hits = sluicegate.Hits{}
	verdict := check(t, client, ann)
	if retryAfter, ok := verdict.RetryAfter(); verdict.Allowed || !ok || retryAfter > 24*time.Hour {
		t.Fatalf("sixth hit: %+v", verdict)
	}
	if n := remaining(t, client, ann); n != 0 {
		t.Fatalf("%d remaining after all hits", n)
	}
	ann.Hits = sluicegate.Refund(2)
	check(t, client, ann)
	if n := remaining(t, client, ann); n != 2 {
		t.Fatalf("%d remaining after a refund", n)
	}
	if !check(t, client, of("tier", "enterprise")).Statuses[0].Unlimited() {
		t.Fatal("the unlimited rule reports a limit")
	}
}

func TestHitsOfADescriptorReplaceThoseOfTheCheck(t *testing.T) {
	client := connect(t, serve(t, limits).grpc)
	both := of("user", "ann")
	both.Descriptors = append(both.Descriptors, sluicegate.NewDescriptor("user", "eve"))
	both.Descriptors[1].Hits = sluicegate.Charge(3)
	check(t, client, both)
	if a, e := remaining(t, client, of("user", "ann")), remaining(t, client, of("user", "eve")); a != 4 || e != 2 {
		t.Fatalf("%d and %d remaining, want 4 and 2", a, e)
	}
}

func TestOverridesLimitWindowsOfAnyLength(t *testing.T) {
	client := connect(t, serve(t, "domain: empty").grpc)
	for _, window := range []struct {
		length   time.Duration
		override sluicegate.Override
	}{
		{15 * time.Minute, sluicegate.Override{RequestsPerUnit: 5, Unit: sluicegate.Minute, UnitMultiplier: 15}},
		{90 * time.Second, sluicegate.Override{RequestsPerUnit: 5, Unit: sluicegate.Second, UnitMultiplier: 90}},
		{24 * time.Hour, sluicegate.Override{RequestsPerUnit: 5, Unit: sluicegate.Day, UnitMultiplier: 1}},
	} {
		login := sluicegate.NewDescriptor("login", window.length.String())
		login.Override = sluicegate.NewOverride(5, window.length)
		if *login.Override != window.override {
			t.Fatalf("override %+v, want %+v", *login.Override, window.override)
		}
		attempt := sluicegate.Check{Domain: "empty", Descriptors: []sluicegate.Descriptor{login}}
		var allowed int
		for range 7 {
			if check(t, client, attempt).Allowed {
				allowed++
			}
		}
		// An aligned window may end in between.
		if allowed < 5 {
			t.Fatalf("%v: %d allowed", window.length, allowed)
		}
		status := check(t, client, attempt).Statuses[0]
		multiplier := window.override.UnitMultiplier
		if status.Limit == nil || status.Limit.UnitMultiplier != multiplier || status.Reset > window.length {
			t.Fatalf("%v: status %+v", window.length, status)
		}
	}
}

func TestOverrideInAnUnknownDomainIsAnError(t *testing.T) {
	client := connect(t, serve(t, limits).grpc)
	login := sluicegate.NewDescriptor("login", "ann")
	login.Override = sluicegate.NewOverride(5, time.Minute)
	unknown := sluicegate.Check{Domain: "unknown", Descriptors: []sluicegate.Descriptor{login}}
	_, err := client.Check(t.Context(), unknown)
	expectError(t, err, sluicegate.ErrOverrideNotApplied)
}

// A value that cannot be sent must not let its caller pass.
func TestValuesThatAreNotUTF8AreLimited(t *testing.T) {
	client := connect(t, serve(t, limits).grpc)
	for range 5 {
		check(t, client, of("user", "\xff\xfe"))
	}
	if check(t, client, of("user", "\xff\xfe")).Allowed {
		t.Fatal("the sixth hit is allowed")
	}
}

// shedding returns the address of a server that sheds every request, because Redis does not answer the one in flight.
func shedding(t *testing.T) string {
	address, process := redis(t)
	s := serve(t, limits, "--store", "redis://"+address, "--decision-timeout", "1h", "--max-in-flight", "1")
	until(t, "the store to be in use", func() bool { return s.metric(t, "sluicegate_store_degraded") == 0 })
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	held := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	client, err := sluicegate.New(s.grpc, sluicegate.WithTimeout(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(held)
		_, _ = client.Check(ctx, of("user", "held"))
	}()
	t.Cleanup(func() {
		cancel()
		<-held
		_ = client.Close()
	})
	until(t, "the call to be in flight", func() bool { return s.metric(t, "sluicegate_requests_in_flight") == 1 })
	return s.grpc
}

func TestShedRequestIsRefused(t *testing.T) {
	client := connect(t, shedding(t))
	plain := of("user", "ann")
	overridden := of("user", "eve")
	overridden.Descriptors[0].Override = sluicegate.NewOverride(5, time.Minute)
	for _, c := range []sluicegate.Check{plain, overridden} {
		verdict := check(t, client, c)
		if _, ok := verdict.RetryAfter(); verdict.Allowed || ok {
			t.Fatalf("%+v", verdict)
		}
	}
}

func TestHealthOfAServerAndOfNone(t *testing.T) {
	s := serve(t, limits)
	if err := connect(t, s.grpc).Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	expectError(t, connect(t, "127.0.0.1:1").Health(t.Context()), sluicegate.ErrUnavailable)
	drained := health.NewServer()
	drained.Shutdown()
	address := listen(t, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, drained) })
	expectError(t, connect(t, address).Health(t.Context()), sluicegate.ErrNotServing)
}

func TestErrorsHaveKinds(t *testing.T) {
	silent := func(ctx context.Context, _ *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	fails := func(code codes.Code) func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		return func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
			return nil, status.Error(code, "why")
		}
	}
	brief := sluicegate.WithTimeout(20 * time.Millisecond)

	_, err := connect(t, script(t, silent), brief).Check(t.Context(), of("user", "ann"))
	expectError(t, err, sluicegate.ErrDeadlineExceeded)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = connect(t, script(t, silent)).Check(ctx, of("user", "ann"))
	expectError(t, err, sluicegate.ErrDeadlineExceeded)

	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = connect(t, script(t, silent)).Check(ctx, of("user", "ann"))
	expectError(t, err, context.Canceled)

	_, err = connect(t, script(t, fails(codes.Unavailable))).Check(t.Context(), of("user", "ann"))
	expectError(t, err, sluicegate.ErrUnavailable)
	_, err = connect(t, script(t, fails(codes.PermissionDenied))).Check(t.Context(), of("user", "ann"))
	if status.Code(err) != codes.PermissionDenied {
		t.Fatalf("code of %v", err)
	}
	// The service rejects a check without descriptors.
	_, err = connect(t, serve(t, limits).grpc).Check(t.Context(), sluicegate.Check{Domain: "shop"})
	if err == nil || status.Code(err) == codes.Unknown {
		t.Fatalf("check without descriptors: %v", err)
	}
}

func TestUnixSocket(t *testing.T) {
	folder, err := os.MkdirTemp("", "sg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	socket := "unix:" + filepath.Join(folder, "grpc.sock")
	serve(t, limits, "--grpc-listen", socket)
	if n := remaining(t, connect(t, socket), of("user", "ann")); n != 5 {
		t.Fatalf("%d remaining", n)
	}
}

func TestTargetsWithASchemeOfHTTPAreRejected(t *testing.T) {
	for _, target := range []string{"http://localhost:8081", "https://localhost:8081"} {
		if _, err := sluicegate.New(target); err == nil {
			t.Fatalf("%s is accepted", target)
		}
	}
}

func TestTLSAuthenticatesBothSides(t *testing.T) {
	ca := newAuthority(t)
	serverCert, serverKey := ca.issue(t, "server")
	clientCert, clientKey := ca.issue(t, "client")
	s := serve(t, limits, "--grpc-tls-cert", serverCert, "--grpc-tls-key", serverKey, "--grpc-tls-client-ca", ca.file)

	load := func(caFile, certFile, keyFile string) *tls.Config {
		config, err := sluicegate.LoadTLS(caFile, certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	known := connect(t, s.grpc, sluicegate.WithTLS(load(ca.file, clientCert, clientKey)))
	if n := remaining(t, known, of("user", "ann")); n != 5 {
		t.Fatalf("%d remaining", n)
	}
	for name, config := range map[string]*tls.Config{
		"without a client certificate": load(ca.file, "", ""),
		"with the system's CAs":        load("", clientCert, clientKey),
	} {
		_, err := connect(t, s.grpc, sluicegate.WithTLS(config)).Check(t.Context(), of("user", "ann"))
		if err == nil {
			t.Fatalf("a client %s is accepted", name)
		}
	}
	for _, files := range [][3]string{
		{"absent", "", ""}, {serverKey, "", ""}, {"", clientCert, ""}, {"", clientCert, serverKey},
	} {
		if _, err := sluicegate.LoadTLS(files[0], files[1], files[2]); err == nil {
			t.Fatalf("files %v are accepted", files)
		}
	}
}

// The client has Envoy's own messages, so that another package of the process may load them too.
func TestMessagesAreThoseOfEnvoysPackage(t *testing.T) {
	descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName("envoy.service.ratelimit.v3.RateLimitRequest")
	if err != nil {
		t.Fatal(err)
	}
	if own := (&rls.RateLimitRequest{}).ProtoReflect().Descriptor(); own != descriptor {
		t.Fatalf("%v is registered, not %v", descriptor, own)
	}
}

// authority is a certificate authority of a test.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	file        string
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test CA"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return authority{certificate: template, key: key, file: writePEM(t, "CERTIFICATE", der)}
}

// issue returns the files of a certificate for 127.0.0.1, and of its key.
func (a authority) issue(t *testing.T, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:     []string{name},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return writePEM(t, "CERTIFICATE", der), writePEM(t, "PRIVATE KEY", pkcs8)
}

func writePEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
