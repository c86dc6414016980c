//! A bounded number of places.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Places that can be taken, up to a bound. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    taken: Arc<AtomicUsize>,
    max: usize,
}

/// A taken place, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Places {
    pub(crate) fn new(max: usize) -> Self {
        Self { taken: Arc::default(), max }
    }

    /// A place, unless all are taken.
    pub(crate) fn take(&self) -> Option<Place> {
        // Given back at once if it is one too many.
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(&self.taken));
        (before < self.max).then_some(place)
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Places;

    #[test]
    fn a_place_is_given_back_when_it_is_dropped() {
        let places = Places::new(2);
        let (first, second) = (places.take(), places.take());
        assert!(first.is_some() && second.is_some() && places.take().is_none());
        assert_eq!(places.taken(), 2);
        drop(first);
        assert!(places.take().is_some());
        assert_eq!(places.taken(), 1);
    }
}
