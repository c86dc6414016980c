package sluicegate

import (
	"context"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// GRPCOptions are the options of [Client.UnaryServerInterceptor] and [Client.StreamServerInterceptor]. Domain and
// Descriptors are required. A method is its full name, such as /package.Service/Method.
type GRPCOptions struct {
	// Domain selects the limits file.
	Domain string
	// Descriptors returns the descriptors of a call. A call without descriptors is not limited. request is the message
	// of a unary call, and nil for a stream.
	Descriptors func(ctx context.Context, method string, request any) []Descriptor
	// Hits returns the hits of a call. Default: one hit.
	Hits func(ctx context.Context, method string, request any) Hits
	// FailureMode is what happens if the service does not answer. Default: FailureModeOpen.
	FailureMode FailureMode
	// Timeout of the call to the service. Default: that of the client.
	Timeout time.Duration
	// Skip reports whether a call is not limited.
	Skip func(ctx context.Context, method string) bool
	// OnLimited returns the error of a refused call. Default, also for nil: RESOURCE_EXHAUSTED with
	// google.rpc.RetryInfo.
	OnLimited func(ctx context.Context, method string, verdict *Verdict) error
	// OnError is called with each failed call to the service, before the failure mode applies, for example to count it.
	OnError func(ctx context.Context, method string, err error)
}

// UnaryServerInterceptor returns an interceptor that asks the service about each call before it calls the handler. A
// refused call fails with RESOURCE_EXHAUSTED and retry-after in the trailing metadata. The headers of the service are
// sent as metadata. It asks even if the caller cancels meanwhile. It panics if a required option is missing.
func (c *Client) UnaryServerInterceptor(o GRPCOptions) grpc.UnaryServerInterceptor {
	o.mustBeComplete("UnaryServerInterceptor")
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		setHeader := func(md metadata.MD) error { return grpc.SetHeader(ctx, md) }
		setTrailer := func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) }
		if err := c.intercept(ctx, o, info.FullMethod, request, setHeader, setTrailer); err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
}

// StreamServerInterceptor is [Client.UnaryServerInterceptor] for streams. It asks once, when a stream begins.
func (c *Client) StreamServerInterceptor(o GRPCOptions) grpc.StreamServerInterceptor {
	o.mustBeComplete("StreamServerInterceptor")
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, method := stream.Context(), info.FullMethod
		if err := c.intercept(ctx, o, method, nil, stream.SetHeader, stream.SetTrailer); err != nil {
			return err
		}
		return handler(server, stream)
	}
}

func (o GRPCOptions) mustBeComplete(caller string) {
	if o.Domain == "" || o.Descriptors == nil {
		panic("sluicegate: " + caller + ": Domain and Descriptors are required")
	}
}

// intercept returns the error of a call that may not pass.
func (c *Client) intercept(
	ctx context.Context, o GRPCOptions, method string, request any,
	setHeader func(metadata.MD) error, setTrailer func(metadata.MD),
) error {
	if o.Skip != nil && o.Skip(ctx, method) {
		return nil
	}
	check := Check{Domain: o.Domain, Descriptors: o.Descriptors(ctx, method, request)}
	if len(check.Descriptors) == 0 {
		return nil
	}
	if o.Hits != nil {
		check.Hits = o.Hits(ctx, method, request)
	}
	verdict, err := c.decide(ctx, check, o.Timeout)
	if err != nil {
		if o.OnError != nil {
			o.OnError(ctx, method, err)
		}
		if o.FailureMode == FailureModeClosed {
			return status.Error(codes.Unavailable, detailUnavailable)
		}
		return nil
	}
	for _, h := range verdict.ResponseHeaders {
		name := strings.ToLower(h.Name)
		if name == "retry-after" || name == "content-type" {
			continue
		}
		// One at a time: a name or value that metadata cannot have must not stop the others.
		_ = setHeader(metadata.Pairs(name, h.Value))
	}
	if verdict.Allowed {
		return nil
	}
	seconds, known := verdict.retryAfterSeconds()
	if known {
		setTrailer(metadata.Pairs("retry-after", strconv.FormatInt(seconds, 10)))
	}
	if o.OnLimited != nil {
		if err := o.OnLimited(ctx, method, verdict); err != nil {
			return err
		}
	}
	refusal := status.New(codes.ResourceExhausted, detailRefused)
	if delay, ok := verdict.delay(); ok {
		if detailed, err := refusal.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)}); err == nil {
			refusal = detailed
		}
	}
	return refusal.Err()
}
