package sluicegate

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors of calls, for [errors.Is]. A call that fails otherwise has the code of gRPC, which [status.Code] returns. No
// call is repeated, because one that failed may have been counted.
var (
	// ErrDeadlineExceeded means that the service did not answer in time.
	ErrDeadlineExceeded = errors.New("sluicegate: deadline exceeded")
	// ErrUnavailable means that the service cannot be reached, or that the connection broke.
	ErrUnavailable = errors.New("sluicegate: service unavailable")
	// ErrOverrideNotApplied means that the service allowed the request without applying its override: it does not know
	// the domain.
	ErrOverrideNotApplied = errors.New("sluicegate: the service did not apply the override; does it know the domain?")
	// ErrNotServing means that the service reports that it does not serve.
	ErrNotServing = errors.New("sluicegate: service not serving")
	// ErrWaitExceeded means that the limit did not allow the check within the maximum wait.
	ErrWaitExceeded = errors.New("sluicegate: maximum wait exceeded")
	// ErrClosed means that the client is closed.
	ErrClosed = errors.New("sluicegate: client closed")
)

// callError returns the error of a call that failed. ctx is that of the caller.
func callError(ctx context.Context, err error) error {
	if canceled := ctx.Err(); errors.Is(canceled, context.Canceled) {
		return fmt.Errorf("sluicegate: %w", canceled)
	}
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Canceled: // a server that gives a call up reports either
		return fmt.Errorf("%w: %w", ErrDeadlineExceeded, err)
	case codes.Unavailable:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("sluicegate: %w", err)
}
