package sluicegate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// DefaultTimeout is how long a call may take without [WithTimeout]. Envoy's default is 20 ms; this one is longer
// because it includes opening a connection.
const DefaultTimeout = 100 * time.Millisecond

// Client is a client of a rate limit service. It is safe for concurrent use, and all its calls share one connection, so
// that a process needs one client for each service.
type Client struct {
	connection *grpc.ClientConn
	service    rls.RateLimitServiceClient
	health     healthpb.HealthClient
	timeout    time.Duration
	schedules  schedules
	// closing is canceled by Close.
	closing context.Context
	close   context.CancelFunc
}

// Option is an option of [New].
type Option func(*options)

type options struct {
	timeout time.Duration
	tls     *tls.Config
	dial    []grpc.DialOption
}

// WithTimeout sets how long a call may take. A context with an earlier deadline ends the call earlier.
func WithTimeout(timeout time.Duration) Option {
	return func(o *options) { o.timeout = timeout }
}

// WithTLS encrypts the connection. [LoadTLS] makes a configuration from files; an empty one trusts the system's
// certificate authorities.
func WithTLS(config *tls.Config) Option {
	return func(o *options) { o.tls = config }
}

// WithDialOptions adds options of gRPC, which take precedence over the client's own.
func WithDialOptions(dial ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, dial...) }
}

// New returns a client of the service at target: host:port, or unix:path for a socket. It connects with the first call.
func New(target string, opts ...Option) (*Client, error) {
	o := options{timeout: DefaultTimeout}
	for _, option := range opts {
		option(&o)
	}
	if strings.HasPrefix(target, "http://") || strings.HasPrefix(target, "https://") {
		return nil, fmt.Errorf("sluicegate: target %q must be host:port or unix:path; WithTLS encrypts", target)
	}
	transport := insecure.NewCredentials()
	if o.tls != nil {
		transport = credentials.NewTLS(o.tls)
	}
	dial := append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		// A call that failed may have been counted.
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			// gRPC's default waits up to two minutes for a service that restarts.
			Backoff: backoff.Config{
				BaseDelay:  100 * time.Millisecond,
				Multiplier: 1.6,
				Jitter:     0.2,
				MaxDelay:   time.Second,
			},
			MinConnectTimeout: time.Second,
		}),
		// Detects a service that disappeared without closing the connection.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	}, o.dial...)
	connection, err := grpc.NewClient(target, dial...)
	if err != nil {
		return nil, fmt.Errorf("sluicegate: %w", err)
	}
	closing, closeNow := context.WithCancel(context.Background())
	return &Client{
		connection: connection,
		service:    rls.NewRateLimitServiceClient(connection),
		health:     healthpb.NewHealthClient(connection),
		timeout:    o.timeout,
		closing:    closing,
		close:      closeNow,
	}, nil
}

// LoadTLS returns a TLS configuration from files in PEM. caFile has the certificate authorities of the service,
// certFile and keyFile the client's certificate chain and key, for mutual TLS. Files that are not needed are empty:
// without caFile the system's authorities are trusted. The client's certificate is read for each connection, so that a
// new one needs no restart.
func LoadTLS(caFile, certFile, keyFile string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("sluicegate: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("sluicegate: no certificate in %s", caFile)
		}
	}
	if certFile != "" || keyFile != "" {
		load := func() (*tls.Certificate, error) {
			certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
			if err != nil {
				return nil, fmt.Errorf("sluicegate: client certificate: %w", err)
			}
			return &certificate, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return config, nil
}

// Check asks the service, once. A call that fails may have been counted, so it is not repeated.
func (c *Client) Check(ctx context.Context, check Check) (*Verdict, error) {
	return c.check(ctx, check, c.timeout)
}

func (c *Client) check(ctx context.Context, check Check, timeout time.Duration) (*Verdict, error) {
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	message, err := c.service.ShouldRateLimit(call, check.request())
	if err != nil {
		return nil, callError(ctx, err)
	}
	return newVerdict(check, message)
}

// Health asks the service for its health, by gRPC's health checking protocol. It returns nil if the service serves.
func (c *Client) Health(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	answer, err := c.health.Check(call, &healthpb.HealthCheckRequest{})
	if err != nil {
		return callError(ctx, err)
	}
	if answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("%w: %v", ErrNotServing, answer.GetStatus())
	}
	return nil
}

// Close ends the waits of [Client.Acquire] with [ErrClosed], awaits the refunds of callers that gave up, and closes the
// connection. Calls of [Client.Check] in flight fail.
func (c *Client) Close() error {
	c.close()
	c.schedules.close()
	return c.connection.Close()
}
