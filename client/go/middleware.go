package sluicegate

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// FailureMode is what happens to a request if the service does not answer, or does not apply an override.
type FailureMode int

const (
	// FailureModeOpen lets the request pass, as Envoy does by default.
	FailureModeOpen FailureMode = iota
	// FailureModeClosed refuses the request: status 503, or UNAVAILABLE in gRPC.
	FailureModeClosed
)

// Texts of the answers.
const (
	detailRefused     = "The rate limit is exceeded."
	detailUnavailable = "The rate limit service does not answer."
)

// HTTPOptions are the options of [Client.Middleware]. Domain and Descriptors are required.
type HTTPOptions struct {
	// Domain selects the limits file.
	Domain string
	// Descriptors returns the descriptors of a request. A request without descriptors is not limited.
	Descriptors func(*http.Request) []Descriptor
	// Hits returns the hits of a request. Default: one hit.
	Hits func(*http.Request) Hits
	// FailureMode is what happens if the service does not answer. Default: FailureModeOpen.
	FailureMode FailureMode
	// Timeout of the call. Default: that of the client.
	Timeout time.Duration
	// Skip reports whether a request is not limited.
	Skip func(*http.Request) bool
	// OnLimited writes the status and the body of the answer to a refused request. Retry-After and the headers of the
	// service are set before. Default: status 429 with the body of the service, or else application/problem+json.
	OnLimited func(http.ResponseWriter, *http.Request, *Verdict)
	// OnError is called with each failed call, before the failure mode applies, for example to count it.
	OnError func(*http.Request, error)
}

// Middleware returns a middleware that asks the service about each request before it calls the next handler. It asks
// even if the client disconnects meanwhile. Middleware panics if a required option is missing.
func (c *Client) Middleware(o HTTPOptions) func(http.Handler) http.Handler {
	if o.Domain == "" || o.Descriptors == nil {
		panic("sluicegate: Middleware: Domain and Descriptors are required")
	}
	if o.OnLimited == nil {
		o.OnLimited = writeRefusal
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if o.Skip != nil && o.Skip(r) {
				next.ServeHTTP(w, r)
				return
			}
			check := Check{Domain: o.Domain, Descriptors: o.Descriptors(r)}
			if len(check.Descriptors) == 0 {
				next.ServeHTTP(w, r)
				return
			}
			if o.Hits != nil {
				check.Hits = o.Hits(r)
			}
			verdict, err := c.decide(r.Context(), check, o.Timeout)
			switch {
			case err != nil:
				if o.OnError != nil {
					o.OnError(r, err)
				}
				if o.FailureMode == FailureModeClosed {
					writeProblem(w, http.StatusServiceUnavailable, detailUnavailable, nil)
					return
				}
				next.ServeHTTP(w, r)
			case verdict.Allowed:
				addHeaders(w.Header(), verdict)
				next.ServeHTTP(w, r)
			default:
				addHeaders(w.Header(), verdict)
				if seconds, ok := verdict.retryAfterSeconds(); ok && w.Header().Get("Retry-After") == "" {
					w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
				}
				o.OnLimited(w, r, verdict)
			}
		})
	}
}

// decide checks on behalf of a remote caller. timeout is that of the middleware's options. The caller neither ends the
// call nor shortens its deadline: with failure mode open it could choose to pass without a check.
func (c *Client) decide(ctx context.Context, check Check, timeout time.Duration) (*Verdict, error) {
	if timeout == 0 {
		timeout = c.timeout
	}
	return c.check(context.WithoutCancel(ctx), check, timeout)
}

func addHeaders(header http.Header, verdict *Verdict) {
	for _, h := range verdict.ResponseHeaders {
		header.Add(h.Name, h.Value)
	}
}

func writeRefusal(w http.ResponseWriter, _ *http.Request, verdict *Verdict) {
	if len(verdict.RawBody) == 0 {
		var retryAfter *int64
		if seconds, ok := verdict.retryAfterSeconds(); ok {
			retryAfter = &seconds
		}
		writeProblem(w, http.StatusTooManyRequests, detailRefused, retryAfter)
		return
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(verdict.RawBody)
}

// problem is a body of RFC 9457.
type problem struct {
	Type       string `json:"type"`
	Title      string `json:"title"`
	Status     int    `json:"status"`
	Detail     string `json:"detail"`
	RetryAfter *int64 `json:"retryAfter,omitempty"`
}

func writeProblem(w http.ResponseWriter, status int, detail string, retryAfter *int64) {
	body, err := json.Marshal(problem{"about:blank", http.StatusText(status), status, detail, retryAfter})
	if err != nil {
		http.Error(w, detail, status)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
