//! Where the aligned windows of a counter begin, from what the server's answers say about their end.
//!
//! The server has its own clock, and with several Redis servers each counter may go by another one. So a counter's windows
//! are known from answers about this counter alone.

use super::bound::{Edge, Micros, Span};

/// Servers tell the time until the reset in whole seconds, rounded up.
const ROUNDING: Micros = 1_000_000;

/// Narrows down where windows begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edges {
    window: Micros,
    /// Where a window ends that an answer has told of; `None` before the first.
    known: Option<Span>,
    /// Whether answers contradicted each other, as when the clock was set. Then `known` covers all that they say.
    contradicted: bool,
}

impl Edges {
    pub(super) const fn new(window: Micros) -> Self {
        Self { window, known: None, contradicted: false }
    }

    /// Takes in where a window ends.
    pub(super) fn note(&mut self, told: Span) {
        if told.to - told.from >= self.window {
            return;
        }
        let Some(known) = self.known else {
            self.known = Some(told);
            return;
        };
        // The same edge, told by whole windows earlier or later: the one whose middle is nearest, and its neighbours.
        let middle = |span: Span| span.from + (span.to - span.from) / 2;
        let apart = middle(known) - middle(told) + self.window / 2;
        let nearest = told.moved(apart.div_euclid(self.window) * self.window);
        let moved = [nearest, nearest.moved(-self.window), nearest.moved(self.window)];
        let mut common = moved.into_iter().filter_map(|told| known.common(told));
        self.known = match (common.next(), common.next()) {
            (Some(common), None) if !self.contradicted => Some(common),
            // The edge is in one of two places: that cannot be kept, and another answer tells it better.
            (Some(_), _) if !self.contradicted => Some(known),
            _ => {
                self.contradicted = true;
                Some(Span { from: known.from.min(nearest.from), to: known.to.max(nearest.to) })
            }
        };
    }

    /// Where a window begins. If nothing is known, anywhere.
    pub(super) fn edge(self) -> Edge {
        let anywhere = Span { from: 0, to: self.window };
        self.known.filter(|known| known.to - known.from < self.window).unwrap_or(anywhere)
    }

    /// How long the span is in which a window may begin; `None` if nothing is known.
    pub(super) fn uncertainty(self) -> Option<Micros> {
        self.known.map(|known| known.to - known.from).filter(|span| *span < self.window)
    }
}

/// Where a window ends that at some moment of the span had this long to go, rounded up to a second.
pub(super) const fn end(span: Span, until_end: Micros) -> Span {
    Span { from: span.from + until_end - ROUNDING, to: span.to + until_end }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;
    const WINDOW: Micros = 10 * SECOND;

    /// What a server tells at that time, whose windows begin at 3.25 s.
    fn until_end(now: Micros) -> Micros {
        let left = WINDOW - (now - 3_250_000).rem_euclid(WINDOW);
        (left + SECOND - 1) / SECOND * SECOND
    }

    fn note(edges: &mut Edges, now: Micros, ahead: Micros) {
        edges.note(end(Span { from: now - 2_000, to: now + 5_000 }, until_end(now + ahead)));
    }

    #[test]
    fn nothing_is_known_without_answers() {
        let edges = Edges::new(WINDOW);
        assert_eq!((edges.edge(), edges.uncertainty()), (Span { from: 0, to: WINDOW }, None));
    }

    #[test]
    fn one_answer_tells_it_to_a_second() {
        let mut edges = Edges::new(WINDOW);
        note(&mut edges, 20 * SECOND, 0);
        assert_eq!(edges.uncertainty(), Some(SECOND + 7_000));
        let Span { from, to } = edges.edge();
        assert!((from..=to).contains(&23_250_000), "{edges:?}");
    }

    #[test]
    fn many_answers_tell_it_to_the_time_between_them() {
        let mut edges = Edges::new(WINDOW);
        for now in (0..60 * SECOND).step_by(10_000) {
            note(&mut edges, now, 0);
        }
        assert!(edges.uncertainty().is_some_and(|span| span <= 20_000), "{edges:?}");
        let Span { from, to } = edges.edge();
        assert!((from..=to).any(|at| (at - 3_250_000).rem_euclid(WINDOW) == 0), "{edges:?}");
    }

    #[test]
    fn windows_of_a_second_are_not_told_by_whole_seconds() {
        let mut edges = Edges::new(SECOND);
        for now in (0..10 * SECOND).step_by(10_000) {
            edges.note(end(Span { from: now, to: now + 1_000 }, SECOND));
        }
        assert_eq!(edges.uncertainty(), None);
    }

    /// Two answers that are most of a window vague meet in two places.
    #[test]
    fn an_edge_that_may_be_in_two_places_is_not_chosen() {
        let begins = 1_010_000;
        let mut edges = Edges::new(2 * SECOND);
        let at = |from| end(Span { from, to: from + 20_000 }, SECOND);
        edges.note(at(0));
        edges.note(at(1_000_000));
        let Span { from, to } = edges.edge();
        assert!((from..=to).contains(&begins) || (from..=to).contains(&(begins - 2 * SECOND)));
        assert_eq!(edges.uncertainty(), Some(1_020_000));
    }

    #[test]
    fn a_clock_that_is_set_makes_it_vague() {
        let mut edges = Edges::new(WINDOW);
        for now in (0..30 * SECOND).step_by(10_000) {
            note(&mut edges, now, if now < 15 * SECOND { 0 } else { 3 * SECOND });
        }
        assert!(edges.uncertainty().is_some_and(|span| span >= 3 * SECOND), "{edges:?}");
        let Span { from, to } = edges.edge();
        for edge in [3_250_000, 250_000] {
            assert!((from..=to).any(|at| (at - edge).rem_euclid(WINDOW) == 0), "{edges:?}");
        }
        // Wherever it was set to in the end.
        for ahead in (0..WINDOW).step_by(500_000) {
            note(&mut edges, 40 * SECOND, ahead);
        }
        assert_eq!((edges.edge(), edges.uncertainty()), (Span { from: 0, to: WINDOW }, None));
    }
}
