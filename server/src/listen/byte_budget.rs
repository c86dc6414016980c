//! A bound on the bytes that the requests of a listener hold together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that may be held at once. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ByteBudget(Arc<Semaphore>);

/// The bytes that one request holds. Dropping it releases them.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(Option<OwnedSemaphorePermit>);

impl ByteBudget {
    /// A budget of `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))))
    }

    /// Increases `held` to `bytes` in total, if it is smaller. Returns false, and changes nothing, if the budget does
    /// not suffice.
    pub(crate) fn hold(&self, held: &mut HeldBytes, bytes: usize) -> bool {
        let more =
            bytes.saturating_sub(held.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if more == 0 {
            return true;
        }
        let Ok(more) = u32::try_from(more) else { return false };
        let Ok(more) = Arc::clone(&self.0).try_acquire_many_owned(more) else { return false };
        match &mut held.0 {
            Some(held) => held.merge(more),
            None => held.0 = Some(more),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_held_until_the_request_ends() {
        let budget = ByteBudget::new(10);
        let (mut first, mut second) = (HeldBytes::default(), HeldBytes::default());
        assert!(budget.hold(&mut first, 4));
        assert!(budget.hold(&mut first, 6));
        assert!(budget.hold(&mut first, 5));
        assert!(!budget.hold(&mut second, 5));
        assert!(budget.hold(&mut second, 4));
        drop(first);
        assert!(budget.hold(&mut second, 10));
        assert!(!budget.hold(&mut second, usize::MAX));
    }
}
