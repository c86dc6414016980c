//! Futures that wrap another one and change when it is polled.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// A future that lets other tasks run first at random, if it has a random number generator.
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

/// A future that ends with `None` after another one was polled `polls` times without being ready.
pub(crate) struct DroppedAfterPolls<F> {
    pub(crate) future: F,
    pub(crate) polls: u32,
}

impl<F: Future + Unpin> Future for DroppedAfterPolls<F> {
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
