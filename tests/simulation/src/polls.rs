//! Futures that decide when another one is polled.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// A future that lets other tasks run first, now and then.
pub(crate) struct Yielding<F> {
    pub(crate) future: Pin<Box<F>>,
    pub(crate) rng: Option<fastrand::Rng>,
}

impl<F: Future> Future for Yielding<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.rng.as_mut().is_some_and(|it| it.u32(0..4) == 0) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.future.as_mut().poll(context)
    }
}

/// A future that is polled so often, and then dropped.
pub(crate) struct AtMost<F> {
    pub(crate) future: F,
    pub(crate) polls: u32,
}

impl<F: Future + Unpin> Future for AtMost<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.polls = self.polls.saturating_sub(1);
        match Pin::new(&mut self.future).poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
