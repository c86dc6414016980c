package sluicegate

import (
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Verdict is the answer to a [Check].
type Verdict struct {
	// Allowed reports whether the request may pass. A code that the client does not know counts as allowed, as in Envoy.
	Allowed bool
	// Statuses has one status for each descriptor, in the order of the request. A request that was shed may have none.
	Statuses []Status
	// ResponseHeaders are headers for the response to the caller.
	ResponseHeaders []Header
	// RequestHeaders are headers to add to the request, if it is allowed.
	RequestHeaders []Header
	// RawBody is the body of the response, if the request is refused. It may be empty.
	RawBody []byte
	// Metadata is what the service with --dynamic-metadata reports about the decision. It may be nil.
	Metadata map[string]any
}

// Status is the answer for one descriptor.
type Status struct {
	// Code reports whether the descriptor is over its limit.
	Code Code
	// Limit is the limit that applied. It is nil if none did.
	Limit *Limit
	// Remaining is the number of hits that can still pass.
	Remaining uint32
	// Reset is the time until the window ends, or, if the limit refuses, until the same hits can pass. It is 0 if the
	// service reports none.
	Reset time.Duration
}

// Unlimited reports whether the rule of the descriptor is unlimited.
func (s Status) Unlimited() bool {
	return s.Limit == nil && s.Remaining == 1<<32-1
}

// Code is the decision for a descriptor.
type Code int32

// The codes. Services may send others.
const (
	CodeUnknown   Code = 0
	CodeOK        Code = 1
	CodeOverLimit Code = 2
)

// Limit is the limit that applied to a descriptor.
type Limit struct {
	// Name is the name of the limit. It may be empty.
	Name string
	// RequestsPerUnit is the number of requests in a window.
	RequestsPerUnit uint32
	// Unit is the unit of the window.
	Unit Unit
	// UnitMultiplier is the number of units in a window.
	UnitMultiplier uint32
}

// Header is an HTTP header.
type Header struct {
	Name  string
	Value string
}

// RetryAfter returns the time after which the same request can pass, and false if the service reports none. It is the
// value of the header retry-after-ms if that is a whole number of milliseconds, otherwise that of the header retry-after
// if that is a whole number of seconds, otherwise the longest reset of the limits that refuse.
func (v *Verdict) RetryAfter() (time.Duration, bool) {
	if delay, ok := v.retryAfterMs(); ok {
		return delay, true
	}
	if seconds, ok := v.retryAfterHeader(); ok {
		return time.Duration(seconds) * time.Second, true
	}
	return v.reset()
}

// retryAfterSeconds returns the value of the header Retry-After for the caller.
func (v *Verdict) retryAfterSeconds() (int64, bool) {
	if seconds, ok := v.retryAfterHeader(); ok {
		return seconds, true
	}
	delay, ok := v.RetryAfter()
	return max(1, ceilSeconds(delay)), ok
}

// delay returns how long to wait before the next check of the same hits: RetryAfter, or the exact time of the
// metadata or the reset, if RetryAfter is that time rounded up to seconds.
func (v *Verdict) delay() (time.Duration, bool) {
	if delay, ok := v.retryAfterMs(); ok {
		return delay, true
	}
	reported, ok := v.RetryAfter()
	reset, _ := v.reset()
	for _, exact := range []time.Duration{v.metadataDelay(), reset} {
		if ok && exact > 0 && ceilSeconds(exact) == ceilSeconds(reported) {
			return exact, true
		}
	}
	return reported, ok
}

// metadataDelay returns the longest wait that the metadata has for a descriptor over its limit, or 0.
func (v *Verdict) metadataDelay() (delay time.Duration) {
	descriptors, _ := v.Metadata["descriptors"].([]any)
	for _, item := range descriptors {
		descriptor, _ := item.(map[string]any)
		limits, _ := descriptor["limits"].([]any)
		for _, item := range limits {
			limit, _ := item.(map[string]any)
			if seconds, ok := limit["retryAfter"].(float64); ok && descriptor["code"] == "OVER_LIMIT" {
				delay = max(delay, time.Duration(seconds*float64(time.Second)))
			}
		}
	}
	return delay
}

func (v *Verdict) retryAfterHeader() (int64, bool) {
	// 32 bits, so that it is a time.Duration too.
	return v.numberHeader("retry-after", 32)
}

func (v *Verdict) retryAfterMs() (time.Duration, bool) {
	// 40 bits, so that it is a time.Duration too.
	ms, ok := v.numberHeader("retry-after-ms", 40)
	return time.Duration(ms) * time.Millisecond, ok
}

func (v *Verdict) numberHeader(name string, bits int) (int64, bool) {
	for _, h := range v.ResponseHeaders {
		if strings.EqualFold(h.Name, name) {
			number, err := strconv.ParseUint(strings.TrimSpace(h.Value), 10, bits)
			return int64(number), err == nil
		}
	}
	return 0, false
}

// reset returns the longest reset of the limits that refuse.
func (v *Verdict) reset() (reset time.Duration, found bool) {
	for _, s := range v.Statuses {
		if s.Code == CodeOverLimit && s.Reset > 0 {
			reset, found = max(reset, s.Reset), true
		}
	}
	return reset, found
}

func ceilSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// newVerdict returns the verdict of an answer, or ErrOverrideNotApplied if the service has counted nothing for an
// override of the check.
func newVerdict(check Check, message *rls.RateLimitResponse) (*Verdict, error) {
	v := &Verdict{
		Allowed:         message.GetOverallCode() != rls.RateLimitResponse_OVER_LIMIT,
		ResponseHeaders: newHeaders(message.GetResponseHeadersToAdd()),
		RequestHeaders:  newHeaders(message.GetRequestHeadersToAdd()),
		RawBody:         message.GetRawBody(),
		Metadata:        newMetadata(message.GetDynamicMetadata()),
	}
	for _, s := range message.GetStatuses() {
		v.Statuses = append(v.Statuses, newStatus(s))
	}
	for i, d := range check.Descriptors {
		if v.Allowed && d.Override != nil && (i >= len(v.Statuses) || v.Statuses[i].ignoresOverride()) {
			return nil, ErrOverrideNotApplied
		}
	}
	return v, nil
}

func newMetadata(fields *structpb.Struct) map[string]any {
	if fields == nil {
		return nil
	}
	return fields.AsMap()
}

func (s Status) ignoresOverride() bool {
	return s.Code != CodeOverLimit && s.Limit == nil
}

func newStatus(message *rls.RateLimitResponse_DescriptorStatus) Status {
	s := Status{
		Code:      Code(message.GetCode()),
		Remaining: message.GetLimitRemaining(),
		// A negative time counts as none.
		Reset: max(0, message.GetDurationUntilReset().AsDuration()),
	}
	if limit := message.GetCurrentLimit(); limit != nil {
		s.Limit = &Limit{
			Name:            limit.GetName(),
			RequestsPerUnit: limit.GetRequestsPerUnit(),
			Unit:            Unit(limit.GetUnit()),
			UnitMultiplier:  max(1, limit.GetUnitMultiplier().GetValue()),
		}
	}
	return s
}

func newHeaders(messages []*core.HeaderValue) []Header {
	var headers []Header
	for _, m := range messages {
		value := m.GetValue()
		if value == "" {
			value = string(m.GetRawValue())
		}
		headers = append(headers, Header{Name: m.GetKey(), Value: value})
	}
	return headers
}
