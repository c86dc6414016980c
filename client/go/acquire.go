package sluicegate

import (
	"container/list"
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// Unbounded is a maximum wait without end, for [Client.Acquire] with a context that ends the wait.
const Unbounded time.Duration = math.MaxInt64

// Acquire asks until the check is allowed, and returns its verdict. After a refusal it waits as long as the service
// reports, with jitter so that the processes that share a limit do not return together.
//
// Callers of one client that check the same descriptors share one schedule: they are served first in, first out, and
// only the first of them asks, however many wait.
//
// Acquire returns [ErrWaitExceeded] if maxWait has passed, or as soon as the next check would be later than that; a
// check that began in time is awaited. With a maxWait of 0 it asks once, if no other caller waits. A call that fails
// ends the wait with its error. If ctx is canceled during a call, the call is awaited in the background, and refunded
// if it was allowed, so that a caller that gives up is not charged.
//
// Sluicegate reports times in whole seconds, rounded up. For a rate of more than one a second, start it with
// --dynamic-metadata, which has the exact time.
func (c *Client) Acquire(ctx context.Context, check Check, maxWait time.Duration) (*Verdict, error) {
	deadline := time.Now().Add(maxWait)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	turn, err := c.schedules.enter(check.key())
	if err != nil {
		return nil, err
	}
	if err := turn.wait(ctx, maxWait); err != nil {
		turn.leave()
		return nil, err
	}
	// Only the first waiter gets here, so the schedule is its own until it leaves.
	for schedule := turn.schedule; ; {
		if schedule.next.After(deadline) {
			turn.leave()
			return nil, ErrWaitExceeded
		}
		if err := sleep(ctx, time.Until(schedule.next)); err != nil {
			turn.leave()
			return nil, err
		}
		verdict, err, known := c.ask(ctx, check, turn.leave)
		if !known {
			return nil, err
		}
		if err != nil || verdict.Allowed {
			turn.leave()
			return verdict, err
		}
		schedule.refused(verdict)
	}
}

// ask makes one call that outlives its caller. If ctx is canceled first, known is false, and settled is called when
// nothing of the call is charged any more.
func (c *Client) ask(ctx context.Context, check Check, settled func()) (verdict *Verdict, err error, known bool) {
	type answer struct {
		verdict *Verdict
		err     error
	}
	call := context.WithoutCancel(ctx)
	answers := make(chan answer, 1)
	go func() {
		verdict, err := c.check(call, check, c.timeout)
		answers <- answer{verdict, err}
	}()
	select {
	case a := <-answers:
		return a.verdict, a.err, true
	case <-ctx.Done():
	}
	go func() {
		if a := <-answers; a.err == nil && a.verdict.Allowed {
			c.refund(call, check)
		}
		settled()
	}()
	return nil, canceled(ctx), false
}

// refund returns the hits of a check that was allowed. If that fails they stay charged.
func (c *Client) refund(ctx context.Context, check Check) {
	_, _ = c.check(context.WithoutCancel(ctx), check.undo(), c.timeout)
}

func canceled(ctx context.Context) error {
	if context.Cause(ctx) == ErrClosed {
		return ErrClosed
	}
	return fmt.Errorf("sluicegate: %w", ctx.Err())
}

func sleep(ctx context.Context, delay time.Duration) error {
	if ctx.Err() != nil {
		return canceled(ctx)
	}
	if delay <= 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return canceled(ctx)
	}
}

// schedules has a schedule for each key that has waiters. It is bounded by the number of callers that wait.
type schedules struct {
	mutex  sync.Mutex
	byKey  map[string]*schedule
	closed bool
	// turns counts the waiters, including those that have given up and are not settled.
	turns sync.WaitGroup
}

// schedule is the queue of the waiters of a key. The first waiter may use next and refusals.
type schedule struct {
	turns list.List
	// next is the earliest time of the next check.
	next time.Time
	// refusals counts refusals in a row that reported no time.
	refusals int
}

// turn is the place of a waiter in its schedule.
type turn struct {
	schedules *schedules
	schedule  *schedule
	key       string
	element   *list.Element
	// first is closed when the waiter is the first one.
	first chan struct{}
}

// enter adds a waiter at the end of the queue of a key.
func (s *schedules) enter(key string) (*turn, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	queue := s.byKey[key]
	if queue == nil {
		if s.byKey == nil {
			s.byKey = make(map[string]*schedule)
		}
		queue = &schedule{}
		s.byKey[key] = queue
	}
	t := &turn{schedules: s, schedule: queue, key: key, first: make(chan struct{})}
	t.element = queue.turns.PushBack(t)
	if queue.turns.Len() == 1 {
		close(t.first)
	}
	s.turns.Add(1)
	return t, nil
}

// wait returns when the waiter is the first one, or the reason to give up.
func (t *turn) wait(ctx context.Context, maxWait time.Duration) error {
	select {
	case <-t.first:
		return nil
	default:
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case <-t.first:
		return nil
	case <-timer.C:
		return ErrWaitExceeded
	case <-ctx.Done():
		return canceled(ctx)
	}
}

// leave removes the waiter. The next one becomes the first.
func (t *turn) leave() {
	s := t.schedules
	s.mutex.Lock()
	defer s.mutex.Unlock()
	queue := &t.schedule.turns
	wasFirst := queue.Front() == t.element
	queue.Remove(t.element)
	if next := queue.Front(); next == nil {
		delete(s.byKey, t.key)
	} else if wasFirst {
		close(next.Value.(*turn).first)
	}
	s.turns.Done()
}

// refused sets the time of the next check.
func (s *schedule) refused(verdict *Verdict) {
	delay, known := verdict.delay()
	if known {
		s.refusals = 0
		delay = withJitter(delay)
	} else {
		delay = max(jitterMin, Backoff(0, s.refusals))
		s.refusals++
	}
	s.next = time.Now().Add(delay)
}

// close waits until all waiters have left.
func (s *schedules) close() {
	s.mutex.Lock()
	s.closed = true
	s.mutex.Unlock()
	s.turns.Wait()
}

// key returns a text that is the same for checks of the same domain and entries.
func (c Check) key() string {
	key := fmt.Appendf(nil, "%q", c.Domain)
	for _, d := range c.Descriptors {
		key = append(key, ';')
		for _, e := range d.Entries {
			key = fmt.Appendf(key, "%q=%q,", e.Key, e.Value)
		}
	}
	return string(key)
}
