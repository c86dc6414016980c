//! Estimates where the aligned windows of a counter begin, from the reset times in answers.
//!
//! The server has its own clock, and with several Redis servers each counter may use another one. So the estimate uses
//! only answers about this counter.

use super::bound::{Micros, Span, WindowStart};

/// Servers report the time until the reset in whole seconds, rounded up.
const ROUNDING: Micros = 1_000_000;

/// An estimate of where windows begin, which each answer narrows.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowStartEstimate {
    window: Micros,
    /// Span in which a window ends; `None` before the first answer.
    known: Option<Span>,
    /// Whether answers contradicted each other, for example because the clock was set. `known` then covers all of them.
    contradicted: bool,
}

impl WindowStartEstimate {
    pub(super) const fn new(window: Micros) -> Self {
        Self { window, known: None, contradicted: false }
    }

    /// Adds a span in which a window ends.
    pub(super) fn record(&mut self, end: Span) {
        if end.to - end.from >= self.window {
            return;
        }
        let Some(known) = self.known else {
            self.known = Some(end);
            return;
        };
        // `end`, moved by a whole number of windows so that its middle is nearest to that of `known`; and the same one
        // window earlier and one later.
        let middle = |span: Span| span.from + (span.to - span.from) / 2;
        let apart = middle(known) - middle(end) + self.window / 2;
        let nearest = end.moved(apart.div_euclid(self.window) * self.window);
        let moved = [nearest, nearest.moved(-self.window), nearest.moved(self.window)];
        let mut common = moved.into_iter().filter_map(|end| known.intersection(end));
        self.known = match (common.next(), common.next()) {
            (Some(common), None) if !self.contradicted => Some(common),
            // The start is in one of two spans, which cannot be represented. A later answer may narrow it.
            (Some(_), _) if !self.contradicted => Some(known),
            _ => {
                self.contradicted = true;
                Some(Span { from: known.from.min(nearest.from), to: known.to.max(nearest.to) })
            }
        };
    }

    /// Span in which a window begins. If nothing is known, it is one window long.
    pub(super) fn span(self) -> WindowStart {
        let anywhere = Span { from: 0, to: self.window };
        self.known.filter(|known| known.to - known.from < self.window).unwrap_or(anywhere)
    }

    /// Length of that span; `None` if nothing is known.
    pub(super) fn uncertainty(self) -> Option<Micros> {
        self.known.map(|known| known.to - known.from).filter(|span| *span < self.window)
    }
}

/// Span in which a window ends, if `until_end` (rounded up to a second) remained at some moment of `span`.
pub(super) const fn end(span: Span, until_end: Micros) -> Span {
    Span { from: span.from + until_end - ROUNDING, to: span.to + until_end }
}

#[cfg(test)]
mod tests {
    use super::{super::bound::RunTime, *};

    const SECOND: Micros = 1_000_000;
    const WINDOW: Micros = 10 * SECOND;

    /// The time until the reset that a server reports at `now` if its windows begin at 3.25 s.
    fn until_end(now: RunTime) -> Micros {
        let left = WINDOW - (now - 3_250_000).rem_euclid(WINDOW);
        (left + SECOND - 1) / SECOND * SECOND
    }

    fn record(window_start: &mut WindowStartEstimate, now: RunTime, ahead: Micros) {
        window_start
            .record(end(Span { from: now - 2_000, to: now + 5_000 }, until_end(now + ahead)));
    }

    #[test]
    fn edges_are_unknown_without_answers() {
        let window_start = WindowStartEstimate::new(WINDOW);
        assert_eq!(
            (window_start.span(), window_start.uncertainty()),
            (Span { from: 0, to: WINDOW }, None)
        );
    }

    #[test]
    fn one_answer_gives_the_edge_to_a_second() {
        let mut window_start = WindowStartEstimate::new(WINDOW);
        record(&mut window_start, 20 * SECOND, 0);
        assert_eq!(window_start.uncertainty(), Some(SECOND + 7_000));
        let Span { from, to } = window_start.span();
        assert!((from..=to).contains(&23_250_000), "{window_start:?}");
    }

    #[test]
    fn many_answers_give_the_edge_to_their_interval() {
        let mut window_start = WindowStartEstimate::new(WINDOW);
        for now in (0..60 * SECOND).step_by(10_000) {
            record(&mut window_start, now, 0);
        }
        assert!(window_start.uncertainty().is_some_and(|span| span <= 20_000), "{window_start:?}");
        let Span { from, to } = window_start.span();
        assert!((from..=to).any(|at| (at - 3_250_000).rem_euclid(WINDOW) == 0), "{window_start:?}");
    }

    #[test]
    fn whole_seconds_show_no_edges_of_one_second_windows() {
        let mut window_start = WindowStartEstimate::new(SECOND);
        for now in (0..10 * SECOND).step_by(10_000) {
            window_start.record(end(Span { from: now, to: now + 1_000 }, SECOND));
        }
        assert_eq!(window_start.uncertainty(), None);
    }

    /// Two spans that are each nearly a window long intersect in two places.
    #[test]
    fn an_edge_with_two_possible_positions_is_not_narrowed() {
        let begins = 1_010_000;
        let mut window_start = WindowStartEstimate::new(2 * SECOND);
        let at = |from| end(Span { from, to: from + 20_000 }, SECOND);
        window_start.record(at(0));
        window_start.record(at(1_000_000));
        let Span { from, to } = window_start.span();
        assert!((from..=to).contains(&begins) || (from..=to).contains(&(begins - 2 * SECOND)));
        assert_eq!(window_start.uncertainty(), Some(1_020_000));
    }

    #[test]
    fn a_clock_step_widens_the_edge() {
        let mut window_start = WindowStartEstimate::new(WINDOW);
        for now in (0..30 * SECOND).step_by(10_000) {
            record(&mut window_start, now, if now < 15 * SECOND { 0 } else { 3 * SECOND });
        }
        assert!(
            window_start.uncertainty().is_some_and(|span| span >= 3 * SECOND),
            "{window_start:?}"
        );
        let Span { from, to } = window_start.span();
        for window_start in [3_250_000, 250_000] {
            assert!(
                (from..=to).any(|at| (at - window_start).rem_euclid(WINDOW) == 0),
                "{window_start:?}"
            );
        }
        // Contradictions in all directions.
        for ahead in (0..WINDOW).step_by(500_000) {
            record(&mut window_start, 40 * SECOND, ahead);
        }
        assert_eq!(
            (window_start.span(), window_start.uncertainty()),
            (Span { from: 0, to: WINDOW }, None)
        );
    }
}
