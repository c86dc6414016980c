package sluicegate

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
)

// Pacer starts the jobs of workers at the rate that a limit allows, such as that of a provider's API. Jobs of one
// priority start first in, first out; while jobs of several priorities wait, they start in proportion to their weights.
// A Pacer is safe for concurrent use.
type Pacer struct {
	client  *Client
	check   Check
	onError func(error)

	mutex      sync.Mutex
	priorities []priority
	waiting    int
	// stop ends the dispatcher; nil if none runs.
	stop context.CancelFunc
	// started is the virtual time: the pass of the job that started last.
	started float64
}

// PacerOptions are the options of [Client.NewPacer].
type PacerOptions struct {
	// Weights has the weight of each priority, such as {3, 1}: three jobs of priority 0 start for one of priority 1.
	// Default: one priority.
	Weights []int
	// OnError is called for each check that the service did not answer. The pacer waits and asks again, because no job
	// starts without a verdict.
	OnError func(error)
}

// priority is a queue of stride scheduling: the queue with the smallest pass starts next, and its pass advances by the
// inverse of its weight.
type priority struct {
	weight int
	pass   float64
	jobs   list.List // of chan error
}

// NewPacer returns a pacer of jobs that each cost this check. It panics if a weight is not positive.
func (c *Client) NewPacer(check Check, o PacerOptions) *Pacer {
	if len(o.Weights) == 0 {
		o.Weights = []int{1}
	}
	p := &Pacer{client: c, check: check, onError: o.OnError, priorities: make([]priority, len(o.Weights))}
	for i, weight := range o.Weights {
		if weight <= 0 {
			panic("sluicegate: NewPacer: weights must be positive")
		}
		p.priorities[i].weight = weight
	}
	return p
}

// Run waits until a job of this priority may start, runs it, and returns its error. The priority is an index into
// [PacerOptions.Weights]. If ctx is canceled before, the job does not run, and Run returns the error of ctx. Jobs run
// in the goroutines of their callers: a pacer limits how often they start, not how many run at once.
func (p *Pacer) Run(ctx context.Context, priority int, job func(context.Context) error) error {
	if err := p.wait(ctx, priority); err != nil {
		return err
	}
	return job(ctx)
}

func (p *Pacer) wait(ctx context.Context, priority int) error {
	if priority < 0 || priority >= len(p.priorities) {
		return fmt.Errorf("sluicegate: no priority %d", priority)
	}
	if ctx.Err() != nil {
		return canceled(ctx)
	}
	start := make(chan error, 1)
	job := p.enter(start, priority)
	select {
	case err := <-start:
		return err
	case <-ctx.Done():
	}
	if !p.leave(job, priority) && <-start == nil {
		// The job was allowed to start, and gave up first.
		p.client.refund(ctx, p.check)
	}
	return canceled(ctx)
}

// enter adds a job, and starts a dispatcher for the first one.
func (p *Pacer) enter(start chan error, priority int) *list.Element {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	queue := &p.priorities[priority]
	if queue.jobs.Len() == 0 {
		// A priority without jobs saves nothing up.
		queue.pass = max(queue.pass, p.started)
	}
	p.waiting++
	if p.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		p.stop = stop
		go p.dispatch(ctx)
	}
	return queue.jobs.PushBack(start)
}

// leave removes a job, and reports whether it was still waiting.
func (p *Pacer) leave(job *list.Element, priority int) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	before := p.priorities[priority].jobs.Len()
	p.priorities[priority].jobs.Remove(job)
	if p.priorities[priority].jobs.Len() == before {
		return false
	}
	p.left()
	return true
}

// left counts a job that does not wait any more. The last one ends the dispatcher.
func (p *Pacer) left() {
	p.waiting--
	if p.waiting == 0 {
		p.stop()
		p.stop = nil
	}
}

// dispatch starts the waiting jobs, until ctx is canceled because there are none.
func (p *Pacer) dispatch(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		_, err := p.client.Acquire(ctx, p.check, Unbounded)
		if errors.Is(err, ErrUnavailable) || errors.Is(err, ErrDeadlineExceeded) {
			if p.onError != nil {
				p.onError(err)
			}
			_ = sleep(ctx, Backoff(0, failures))
			failures++
			continue
		}
		failures = 0
		if err != nil && ctx.Err() != nil {
			return
		}
		if !p.start(err) && err == nil {
			// The last job left during the call.
			p.client.refund(ctx, p.check)
		}
	}
}

// start starts the next job, or fails it, and reports whether there was one.
func (p *Pacer) start(err error) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var next *priority
	for i := range p.priorities {
		queue := &p.priorities[i]
		if queue.jobs.Len() > 0 && (next == nil || queue.pass < next.pass) {
			next = queue
		}
	}
	if next == nil {
		return false
	}
	p.started = next.pass
	next.pass += 1 / float64(next.weight)
	next.jobs.Remove(next.jobs.Front()).(chan error) <- err
	p.left()
	return true
}
