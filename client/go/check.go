package sluicegate

import (
	"math"
	"slices"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Check is a request to the service: may these descriptors pass? It passes if each of them is within its limit.
type Check struct {
	// Domain selects the limits file.
	Domain string
	// Descriptors has at least one descriptor.
	Descriptors []Descriptor
	// Hits is what to charge to each descriptor that has no hits of its own. The zero value charges one hit.
	Hits Hits
}

// Descriptor is a list of entries that a rule matches.
type Descriptor struct {
	// Entries has at least one entry, the outermost level first.
	Entries []Entry
	// Hits is what to charge to this descriptor. The zero value stands for the hits of the Check.
	Hits Hits
	// Override replaces the limit of the rule. A nil Override keeps it.
	Override *Override
}

// Entry is a key and a value of a descriptor. Bytes that are not UTF-8 are sent as U+FFFD.
type Entry struct {
	Key   string
	Value string // may be empty
}

// NewDescriptor returns a descriptor of these entries. It panics if a key has no value.
func NewDescriptor(keysAndValues ...string) Descriptor {
	if len(keysAndValues)%2 != 0 {
		panic("sluicegate: NewDescriptor: odd number of arguments")
	}
	var d Descriptor
	for pair := range slices.Chunk(keysAndValues, 2) {
		d.Entries = append(d.Entries, Entry{Key: pair[0], Value: pair[1]})
	}
	return d
}

// Hits is how many units to charge or to refund. Its zero value is unset.
type Hits struct {
	count  uint64
	set    bool
	refund bool
}

// Charge is a number of hits to charge. Charge(0) is [Peek].
func Charge(hits uint64) Hits {
	return Hits{count: hits, set: true}
}

// Peek reads the limits and charges nothing.
func Peek() Hits {
	return Charge(0)
}

// Refund is a number of hits to return, which were charged before. Services that implement Envoy's API of before 1.38
// charge them instead.
func Refund(hits uint64) Hits {
	return Hits{count: hits, set: true, refund: true}
}

// Override is a limit that comes with the request. The service applies it only in a domain that it knows; where it does
// not, the call fails with [ErrOverrideNotApplied].
type Override struct {
	// RequestsPerUnit is the number of requests in a window.
	RequestsPerUnit uint32
	// Unit is the unit of the window.
	Unit Unit
	// UnitMultiplier is the number of units in a window. 0 counts as 1. Services that implement Envoy's API of before
	// 1.40 ignore it.
	UnitMultiplier uint32
}

// NewOverride returns a limit of requests in each window, which is rounded up to whole seconds.
func NewOverride(requests uint32, window time.Duration) *Override {
	seconds := max(1, int64(math.Ceil(window.Seconds())))
	for _, unit := range []struct {
		unit    Unit
		seconds int64
	}{{Day, 86_400}, {Hour, 3600}, {Minute, 60}} {
		if seconds%unit.seconds == 0 {
			return &Override{requests, unit.unit, uint32(seconds / unit.seconds)}
		}
	}
	return &Override{requests, Second, uint32(min(seconds, math.MaxUint32))}
}

// Unit is a unit of time of Envoy's rate limit API.
type Unit int32

// The units. Envoy's overrides have no Week, but Sluicegate accepts one.
const (
	Second Unit = 1
	Minute Unit = 2
	Hour   Unit = 3
	Day    Unit = 4
	Month  Unit = 5 // of a length that the service defines
	Year   Unit = 6 // of a length that the service defines
	Week   Unit = 7
)

// request returns the message of the service.
func (c Check) request() *rls.RateLimitRequest {
	request := &rls.RateLimitRequest{Domain: text(c.Domain)}
	// The request has a number of hits where 0 means unset. Peeks and refunds are set on each descriptor.
	inherited := c.Hits
	if h := c.Hits; !h.refund && h.count > 0 && h.count <= math.MaxUint32 {
		request.HitsAddend = uint32(h.count)
		inherited = Hits{}
	}
	for _, d := range c.Descriptors {
		request.Descriptors = append(request.Descriptors, d.message(inherited))
	}
	return request
}

func (d Descriptor) message(inherited Hits) *common.RateLimitDescriptor {
	message := &common.RateLimitDescriptor{}
	for _, e := range d.Entries {
		entry := &common.RateLimitDescriptor_Entry{Key: text(e.Key), Value: text(e.Value)}
		message.Entries = append(message.Entries, entry)
	}
	if h := d.Hits.or(inherited); h.set {
		message.HitsAddend = wrapperspb.UInt64(h.count)
		message.IsNegativeHits = h.refund
	}
	if o := d.Override; o != nil {
		message.Limit = &common.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: o.RequestsPerUnit,
			Unit:            typev3.RateLimitUnit(o.Unit),
		}
		if o.UnitMultiplier > 0 {
			message.Limit.UnitMultiplier = wrapperspb.UInt32(o.UnitMultiplier)
		}
	}
	return message
}

func (h Hits) or(inherited Hits) Hits {
	if h.set {
		return h
	}
	return inherited
}

// undo returns the check that refunds what this one charged.
func (c Check) undo() Check {
	undone := Check{Domain: c.Domain}
	for _, d := range c.Descriptors {
		switch h := d.Hits.or(c.Hits).or(Charge(1)); {
		case h.refund:
			d.Hits = Peek()
		case h.count > 0:
			d.Hits = Refund(h.count)
		}
		undone.Descriptors = append(undone.Descriptors, d)
	}
	return undone
}

// text returns what a string field can carry. A value that cannot be sent would fail the call, and with failure mode
// open a caller could choose such a value to pass.
func text(s string) string {
	return strings.ToValidUTF8(s, "\uFFFD")
}
