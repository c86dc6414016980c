//! Compilation of the limits of one rule.

use crate::{
    Algorithm, Counting, Limit, Window,
    limit::{LimitError, Unit},
    rule::{DisplayedRate, RuleLimit, RuleLimits},
    rules::{
        Mistake, Warning,
        file::{DescriptorNode, LimitNode, NodeLimits, SourceLocation},
        findings::truncated,
        mistake::LIMITS_MAX,
    },
};

use super::Compiler;

impl<'f> Compiler<'f> {
    /// Compiles the limits of a node; `None` if it has none, or if all of them have mistakes.
    pub(super) fn compile_limits(
        &mut self,
        node: &'f DescriptorNode,
        counting: Counting,
    ) -> Option<RuleLimits> {
        match node.limits.as_ref()? {
            NodeLimits::One(limit) if limit.unlimited => Some(self.compile_unlimited(limit)),
            NodeLimits::One(limit) => {
                Some(RuleLimits::Limited([self.compile_limit(limit, counting)?].into()))
            }
            NodeLimits::Several(location, limits) => {
                self.compile_limit_list(location, limits, counting)
            }
        }
    }

    fn compile_unlimited(&mut self, limit: &'f LimitNode) -> RuleLimits {
        if let Some(unit) = &limit.unit {
            if Unit::from_name(&unit.value).is_some() {
                self.mistake(&unit.location, Mistake::UnlimitedExcludes("unit"));
            } else {
                // envoyproxy/ratelimit accepts it.
                self.warn(&unit.location, Warning::IgnoredByUnlimited("unit"));
            }
        }
        if let Some(requests) = &limit.requests_per_unit {
            self.warn(&requests.location, Warning::IgnoredByUnlimited("requests_per_unit"));
        }
        if limit.algorithm.is_some() {
            self.mistake(&limit.location, Mistake::UnlimitedExcludes("algorithm"));
        }
        if let Some(window) = &limit.window {
            self.mistake(&window.location, Mistake::UnlimitedExcludes("window"));
        }
        for (key, number) in [("unit_multiplier", &limit.unit_multiplier), ("burst", &limit.burst)]
        {
            if let Some(number) = number {
                self.mistake(&number.location, Mistake::UnlimitedExcludes(key));
            }
        }
        let replaces = self.compile_replaces(limit);
        RuleLimits::Unlimited { name: self.define_name(limit), replaces }
    }

    fn compile_limit_list(
        &mut self,
        location: &SourceLocation,
        limits: &'f [LimitNode],
        counting: Counting,
    ) -> Option<RuleLimits> {
        match limits.len() {
            0 => self.mistake(location, Mistake::NoLimits),
            1..=LIMITS_MAX => {}
            count => {
                self.mistake(location, Mistake::TooManyLimits(count));
                return None;
            }
        }
        let mut compiled: Vec<RuleLimit> = Vec::with_capacity(limits.len());
        for limit in limits {
            if limit.unlimited {
                self.mistake(&limit.location, Mistake::UnlimitedInList);
                continue;
            }
            let Some(one) = self.compile_limit(limit, counting) else { continue };
            let counter = |it: &RuleLimit| (it.limit.algorithm(), it.limit.window());
            if compiled.iter().any(|other| counter(other) == counter(&one)) {
                self.mistake(&limit.location, Mistake::SameCounter);
            }
            compiled.push(one);
        }
        (!compiled.is_empty()).then(|| RuleLimits::Limited(compiled.into()))
    }

    fn compile_limit(&mut self, node: &'f LimitNode, counting: Counting) -> Option<RuleLimit> {
        if node.is_incomplete {
            self.check_incomplete(node);
            return None;
        }
        let algorithm = node.algorithm.unwrap_or(self.defaults.algorithm);
        if algorithm == Algorithm::SlidingWindowLog && counting != Counting::Free {
            self.mistake(&node.location, Mistake::LogNeedsFree);
        }
        if node.requests_per_unit.is_none() {
            self.warn(&node.location, Warning::MissingRequests);
        }
        let requests = node.requests_per_unit.as_ref().map_or(0, |it| it.value);
        let (name, replaces) = (self.define_name(node), self.compile_replaces(node));
        let (window, displayed) = self.compile_window(node, requests)?;
        match Limit::new(algorithm, requests, window, node.burst.as_ref().map(|it| it.value)) {
            Ok(limit) => Some(RuleLimit { limit, displayed, name, replaces }),
            Err(error) => {
                let number = match error {
                    LimitError::LogTooLong { .. } | LimitError::GcraTooFast { .. } => None,
                    _ => node.burst.as_ref(),
                };
                let number = number.or(node.requests_per_unit.as_ref());
                self.mistake(number.map_or(&node.location, |number| &number.location), error);
                None
            }
        }
    }

    /// Reports the mistakes in a limit that could be read only in part, except those that the unreadable part may have
    /// caused.
    fn check_incomplete(&mut self, node: &'f LimitNode) {
        self.define_name(node);
        self.compile_replaces(node);
        if let Some(unit) = node.unit.as_ref().filter(|it| Unit::from_name(&it.value).is_none()) {
            self.mistake(&unit.location, Mistake::UnknownUnit);
        }
    }

    /// The window of a limit, and its rate as responses show it.
    fn compile_window(
        &mut self,
        node: &LimitNode,
        requests: u32,
    ) -> Option<(Window, DisplayedRate)> {
        let both = "unit and window are both given";
        match (&node.unit, &node.window) {
            (Some(_), Some(window)) => {
                self.mistake(&window.location, Mistake::Window(both));
                None
            }
            (None, None) => {
                self.mistake(&node.location, Mistake::Window("neither unit nor window is given"));
                None
            }
            (None, Some(window)) => {
                if let Some(multiplier) = &node.unit_multiplier {
                    let without_unit = "unit_multiplier is given without unit";
                    self.mistake(&multiplier.location, Mistake::Window(without_unit));
                }
                let seconds = window.value.as_secs();
                if window.value.subsec_nanos() > 0 {
                    self.mistake(&window.location, Mistake::WindowNotWhole);
                    return None;
                }
                let length = self.report_error(&window.location, Window::from_seconds(seconds))?;
                Some((length, DisplayedRate::in_units(requests, length)))
            }
            (Some(unit), None) => {
                let Some(known_unit) = Unit::from_name(&unit.value) else {
                    self.mistake(&unit.location, Mistake::UnknownUnit);
                    return None;
                };
                let unit_multiplier = node.unit_multiplier.as_ref().map_or(1, |it| it.value);
                let length = Window::from_unit(known_unit, unit_multiplier);
                let location =
                    node.unit_multiplier.as_ref().map_or(&unit.location, |it| &it.location);
                let length = self.report_error(location, length)?;
                Some((
                    length,
                    DisplayedRate {
                        requests_per_unit: requests,
                        unit: known_unit,
                        unit_multiplier,
                    },
                ))
            }
        }
    }

    /// The value, or `None` and a mistake with the error.
    fn report_error<T>(
        &mut self,
        location: &SourceLocation,
        result: Result<T, LimitError>,
    ) -> Option<T> {
        result.map_err(|error| self.mistake(location, error)).ok()
    }

    /// Returns the name of a limit, and adds it to the names that `replaces` can refer to.
    fn define_name(&mut self, node: &'f LimitNode) -> Option<Box<str>> {
        let name = node.name.as_ref().filter(|name| !name.value.is_empty())?;
        if name.value.contains('"') {
            self.warn(&name.location, Warning::QuoteInName);
        }
        self.names.define(name);
        Some(name.value.as_str().into())
    }

    /// The names that a limit replaces.
    fn compile_replaces(&mut self, node: &'f LimitNode) -> Box<[Box<str>]> {
        for replaced in &node.replaces {
            if replaced.value.is_empty() {
                self.mistake(&replaced.location, Mistake::Missing("name"));
            } else if node.name.as_ref().is_some_and(|name| name.value == replaced.value) {
                self.mistake(
                    &replaced.location,
                    Mistake::ReplacesItself(truncated(&replaced.value)),
                );
            } else {
                self.names.add_reference(replaced);
            }
        }
        node.replaces.iter().map(|replaced| replaced.value.as_str().into()).collect()
    }
}
