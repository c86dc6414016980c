package sluicegate_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	sluicegate "github.com/sluicegate/sluicegate/client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// paced has a limit of 100 a second, without bursts, and one that is used up after a hit.
const paced = `
domain: shop
descriptors:
  - key: provider
    rate_limit: {algorithm: gcra, unit: second, requests_per_unit: 100, burst: 1}
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
`

var (
	allowed  = &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	overload = &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OVER_LIMIT}
)

// refusal is an answer that reports a time.
func refusal(reset time.Duration) *rls.RateLimitResponse {
	return &rls.RateLimitResponse{
		OverallCode: rls.RateLimitResponse_OVER_LIMIT,
		Statuses: []*rls.RateLimitResponse_DescriptorStatus{{
			Code:               rls.RateLimitResponse_OVER_LIMIT,
			DurationUntilReset: durationpb.New(reset),
		}},
	}
}

func TestAcquireKeepsToTheLimit(t *testing.T) {
	client := connect(t, serve(t, paced, "--dynamic-metadata", "--response-headers", "x-ratelimit-draft-03").grpc)
	began := time.Now()
	var jobs sync.WaitGroup
	for range 30 {
		jobs.Go(func() {
			verdict, err := client.Acquire(t.Context(), of("provider", "mail"), sluicegate.Unbounded)
			if err != nil || !verdict.Allowed {
				t.Error(verdict, err)
			}
		})
	}
	jobs.Wait()
	took := time.Since(began)
	t.Logf("30 jobs at 100 a second took %v", took)
	if took < 290*time.Millisecond {
		t.Error("faster than the limit")
	}
}

func TestOneWaiterOfAKeyAsksInOrder(t *testing.T) {
	var asking, most, asked atomic.Int64
	client := connect(t, script(t, func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		most.Store(max(most.Load(), asking.Add(1)))
		defer asking.Add(-1)
		time.Sleep(time.Millisecond)
		if asked.Add(1)%2 == 1 {
			return refusal(5 * time.Millisecond), nil
		}
		return allowed, nil
	}))
	var order []int
	var mutex sync.Mutex
	var waiters sync.WaitGroup
	for i := range 8 {
		entered := make(chan struct{})
		waiters.Go(func() {
			close(entered)
			if _, err := client.Acquire(t.Context(), of("provider", "mail"), time.Minute); err != nil {
				t.Error(err)
			}
			mutex.Lock()
			defer mutex.Unlock()
			order = append(order, i)
		})
		<-entered
		time.Sleep(2 * time.Millisecond)
	}
	waiters.Wait()
	if !slices.IsSorted(order) {
		t.Errorf("order %v", order)
	}
	if most.Load() != 1 || asked.Load() != 16 {
		t.Errorf("%d calls, %d at once", asked.Load(), most.Load())
	}
}

func TestWaitersOfOtherKeysAreIndependent(t *testing.T) {
	client := connect(t, serve(t, paced).grpc)
	check(t, client, of("user", "ann"))
	ctx, cancel := context.WithCancel(t.Context())
	waiter := make(chan error)
	go func() {
		_, err := client.Acquire(ctx, of("user", "ann"), sluicegate.Unbounded)
		waiter <- err
	}()
	if _, err := client.Acquire(t.Context(), of("user", "eve"), 0); err != nil {
		t.Fatal(err)
	}
	cancel()
	expectError(t, <-waiter, context.Canceled)
}

func TestMaximumWaitEndsTheWait(t *testing.T) {
	client := connect(t, serve(t, paced).grpc)
	if _, err := client.Acquire(t.Context(), of("user", "ann"), 0); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err := client.Acquire(t.Context(), of("user", "ann"), 0)
	expectError(t, err, sluicegate.ErrWaitExceeded)
	// The limit resets at midnight.
	if time.Until(began.Truncate(24*time.Hour).Add(24*time.Hour)) > 2*time.Minute {
		_, err = client.Acquire(t.Context(), of("user", "ann"), time.Minute)
		expectError(t, err, sluicegate.ErrWaitExceeded)
	}
	// Behind another waiter.
	other := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := client.Acquire(ctx, of("user", "ann"), sluicegate.Unbounded)
		other <- err
	}()
	time.Sleep(10 * time.Millisecond)
	_, err = client.Acquire(t.Context(), of("user", "ann"), 10*time.Millisecond)
	expectError(t, err, sluicegate.ErrWaitExceeded)
	cancel()
	expectError(t, <-other, context.Canceled)
}

func TestWaiterThatGivesUpDuringItsCheckIsRefunded(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	var first sync.Once
	var mutex sync.Mutex
	var charged int64
	client := connect(t, script(t, func(_ context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		first.Do(func() {
			close(asked)
			<-answer
		})
		mutex.Lock()
		defer mutex.Unlock()
		if d := r.GetDescriptors()[0]; d.GetIsNegativeHits() {
			charged -= int64(d.GetHitsAddend().GetValue())
		} else {
			charged += int64(max(1, r.GetHitsAddend()))
		}
		return allowed, nil
	}))
	mail := of("provider", "mail")
	mail.Hits = sluicegate.Charge(3)
	ctx, cancel := context.WithCancel(t.Context())
	waiter := make(chan error)
	go func() {
		_, err := client.Acquire(ctx, mail, sluicegate.Unbounded)
		waiter <- err
	}()
	<-asked
	cancel()
	// It does not wait for the answer.
	expectError(t, <-waiter, context.Canceled)
	next := make(chan error)
	go func() {
		_, err := client.Acquire(t.Context(), of("provider", "mail"), sluicegate.Unbounded)
		next <- err
	}()
	close(answer)
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	mutex.Lock()
	defer mutex.Unlock()
	if charged != 1 {
		t.Fatalf("%d hits are charged", charged)
	}
}

func TestFailedCheckEndsTheWaitOfItsCaller(t *testing.T) {
	client := connect(t, "127.0.0.1:1")
	_, err := client.Acquire(t.Context(), of("provider", "mail"), sluicegate.Unbounded)
	expectError(t, err, sluicegate.ErrUnavailable)
}

func TestCloseEndsWaits(t *testing.T) {
	var asked atomic.Int64
	client := connect(t, script(t, func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		asked.Add(1)
		return refusal(time.Hour), nil
	}))
	waiters := make(chan error)
	for range 2 {
		go func() {
			_, err := client.Acquire(t.Context(), of("provider", "mail"), sluicegate.Unbounded)
			waiters <- err
		}()
	}
	until(t, "the first waiter to ask", func() bool { return asked.Load() == 1 })
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		expectError(t, <-waiters, sluicegate.ErrClosed)
	}
	_, err := client.Acquire(t.Context(), of("provider", "mail"), 0)
	expectError(t, err, sluicegate.ErrClosed)
}

func TestRefusalWithoutATimeIsAskedAgainLater(t *testing.T) {
	var asked atomic.Int64
	client := connect(t, script(t, func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		if asked.Add(1) < 3 {
			return overload, nil
		}
		return allowed, nil
	}))
	if _, err := client.Acquire(t.Context(), of("provider", "mail"), time.Minute); err != nil || asked.Load() != 3 {
		t.Fatal(asked.Load(), err)
	}
}

func TestPacerSharesByWeight(t *testing.T) {
	client := connect(t, serve(t, paced, "--dynamic-metadata").grpc)
	pacer := client.NewPacer(of("provider", "mail"), sluicegate.PacerOptions{Weights: []int{3, 1}})
	var mutex sync.Mutex
	var started []int
	var jobs sync.WaitGroup
	began := time.Now()
	for range 30 {
		for priority := range 2 {
			jobs.Go(func() {
				err := pacer.Run(t.Context(), priority, func(context.Context) error {
					mutex.Lock()
					defer mutex.Unlock()
					started = append(started, priority)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	jobs.Wait()
	took := time.Since(began)
	t.Logf("60 jobs at 100 a second took %v", took)
	if took < 590*time.Millisecond {
		t.Error("faster than the limit")
	}
	var low int
	for _, priority := range started[:40] {
		low += priority
	}
	// The first jobs start before others have come.
	if low < 8 || low > 12 {
		t.Errorf("%d of the first 40 jobs have the low priority: %v", low, started)
	}
}

func TestPacerReturnsTheErrorOfTheJob(t *testing.T) {
	client := connect(t, serve(t, paced).grpc)
	pacer := client.NewPacer(of("provider", "mail"), sluicegate.PacerOptions{})
	failed := errors.New("failed")
	expectError(t, pacer.Run(t.Context(), 0, func(context.Context) error { return failed }), failed)
	if err := pacer.Run(t.Context(), 1, func(context.Context) error { return nil }); err == nil {
		t.Fatal("an unknown priority is accepted")
	}
	expectPanic(t, func() { client.NewPacer(sluicegate.Check{}, sluicegate.PacerOptions{Weights: []int{1, 0}}) })
}

func TestCanceledJobsDoNotRunAndChargeNothing(t *testing.T) {
	var mutex sync.Mutex
	var charged int
	client := connect(t, script(t, func(_ context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		mutex.Lock()
		defer mutex.Unlock()
		if r.GetDescriptors()[0].GetIsNegativeHits() {
			charged--
		} else {
			charged++
		}
		time.Sleep(100 * time.Microsecond)
		return allowed, nil
	}))
	pacer := client.NewPacer(of("provider", "mail"), sluicegate.PacerOptions{})
	var ran atomic.Int64
	var jobs sync.WaitGroup
	for i := range 200 {
		jobs.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
			defer cancel()
			_ = pacer.Run(ctx, 0, func(context.Context) error {
				ran.Add(1)
				return nil
			})
		})
	}
	jobs.Wait()
	t.Logf("%d of 200 jobs ran", ran.Load())
	until(t, "the refunds", func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return charged == int(ran.Load())
	})
}

func TestPacerWaitsWhileTheServiceDoesNotAnswer(t *testing.T) {
	var asked, reported atomic.Int64
	client := connect(t, script(t, func(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
		switch asked.Add(1) {
		case 1, 2:
			return nil, status.Error(codes.Unavailable, "why")
		case 4:
			return nil, status.Error(codes.InvalidArgument, "why")
		}
		return allowed, nil
	}))
	pacer := client.NewPacer(of("provider", "mail"), sluicegate.PacerOptions{OnError: func(error) { reported.Add(1) }})
	job := func(context.Context) error { return nil }
	if err := pacer.Run(t.Context(), 0, job); err != nil || reported.Load() != 2 {
		t.Fatal(err, reported.Load())
	}
	// Waiting would not help.
	if err := pacer.Run(t.Context(), 0, job); status.Code(err) != codes.InvalidArgument {
		t.Fatal(err)
	}
}

func TestBackoffIsNeverShorterThanAsked(t *testing.T) {
	for _, c := range []struct {
		retryAfter    time.Duration
		attempt       int
		least, beyond time.Duration
	}{
		{0, 0, 0, 100 * time.Millisecond},
		{0, 3, 0, 800 * time.Millisecond},
		{0, 1000, 0, 30 * time.Second},
		{0, -1, 0, 100 * time.Millisecond},
		{-time.Second, 0, 0, 100 * time.Millisecond},
		{time.Second, 0, time.Second, 1100 * time.Millisecond},
		{time.Second, 5, time.Second, 4200 * time.Millisecond},
		{time.Hour, 2, time.Hour, time.Hour + 400*time.Millisecond},
	} {
		delays := make(map[time.Duration]bool)
		for range 200 {
			delay := sluicegate.Backoff(c.retryAfter, c.attempt)
			if delay < c.least || delay > c.beyond {
				t.Errorf("%+v: %v", c, delay)
			}
			delays[delay] = true
		}
		if len(delays) < 100 {
			t.Errorf("%+v: only %d different delays", c, len(delays))
		}
	}
}

func TestRetryAfterOfAResponse(t *testing.T) {
	later := time.Now().Add(time.Hour)
	for value, want := range map[string]time.Duration{
		"7":                                 7 * time.Second,
		later.UTC().Format(http.TimeFormat): time.Hour,
		"Wed, 21 Oct 2015 07:28:00 GMT":     0,
		"":                                  -1,
		"soon":                              -1,
		"-7":                                -1,
	} {
		response := &http.Response{Header: http.Header{"Retry-After": {value}}}
		delay, ok := sluicegate.RetryAfter(response)
		if ok != (want >= 0) || ok && (delay > want || delay < want-2*time.Second) {
			t.Errorf("%q: %v, %v", value, delay, ok)
		}
	}
}

func ExampleBackoff() {
	for attempt := range 5 {
		response, err := http.Get("https://provider.example/v1/chat")
		if err != nil {
			break
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusTooManyRequests {
			fmt.Println(response.Status)
			break
		}
		retryAfter, _ := sluicegate.RetryAfter(response)
		time.Sleep(sluicegate.Backoff(retryAfter, attempt))
	}
}
