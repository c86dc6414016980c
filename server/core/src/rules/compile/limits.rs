//! The limits of one descriptor.

use crate::{
    Algorithm, Counting, Limit, Window,
    limit::{LimitError, Unit},
    rule::{Limits, RuleLimit, Shown},
    rules::{
        Oddity, Problem,
        file::{DescriptorNode, LimitNode, LimitsNode, Place},
        findings::quoted,
        problem::LIMITS_MAX,
    },
};

use super::Compiler;

impl<'f> Compiler<'f> {
    /// What a node enforces; `None` if nothing, or if it is broken.
    pub(super) fn limits(
        &mut self,
        node: &'f DescriptorNode,
        counting: Counting,
    ) -> Option<Limits> {
        match node.limits.as_ref()? {
            LimitsNode::One(limit) if limit.unlimited => Some(self.unlimited(limit)),
            LimitsNode::One(limit) => Some(Limits::Each([self.limit(limit, counting)?].into())),
            LimitsNode::Several(place, limits) => self.several(place, limits, counting),
        }
    }

    fn unlimited(&mut self, limit: &'f LimitNode) -> Limits {
        if let Some(unit) = &limit.unit {
            if Unit::from_name(&unit.value).is_some() {
                self.wrong(&unit.place, Problem::UnlimitedExcludes("unit"));
            } else {
                // Accepted, as upstream does.
                self.odd(&unit.place, Oddity::BesideUnlimited("unit"));
            }
        }
        if let Some(requests) = &limit.requests_per_unit {
            self.odd(&requests.place, Oddity::BesideUnlimited("requests_per_unit"));
        }
        if limit.algorithm.is_some() {
            self.wrong(&limit.place, Problem::UnlimitedExcludes("algorithm"));
        }
        if let Some(window) = &limit.window {
            self.wrong(&window.place, Problem::UnlimitedExcludes("window"));
        }
        for (key, number) in [("unit_multiplier", &limit.unit_multiplier), ("burst", &limit.burst)]
        {
            if let Some(number) = number {
                self.wrong(&number.place, Problem::UnlimitedExcludes(key));
            }
        }
        let replaces = self.replaces(limit);
        Limits::Unlimited { name: self.name(limit), replaces }
    }

    fn several(
        &mut self,
        place: &Place,
        limits: &'f [LimitNode],
        counting: Counting,
    ) -> Option<Limits> {
        match limits.len() {
            0 => self.wrong(place, Problem::NoLimits),
            1..=LIMITS_MAX => {}
            count => {
                self.wrong(place, Problem::TooManyLimits(count));
                return None;
            }
        }
        let mut compiled: Vec<RuleLimit> = Vec::with_capacity(limits.len());
        for limit in limits {
            if limit.unlimited {
                self.wrong(&limit.place, Problem::UnlimitedInList);
                continue;
            }
            let Some(one) = self.limit(limit, counting) else { continue };
            let counter = |it: &RuleLimit| (it.limit.algorithm(), it.limit.window());
            if compiled.iter().any(|other| counter(other) == counter(&one)) {
                self.wrong(&limit.place, Problem::SameCounter);
            }
            compiled.push(one);
        }
        (!compiled.is_empty()).then(|| Limits::Each(compiled.into()))
    }

    fn limit(&mut self, node: &'f LimitNode, counting: Counting) -> Option<RuleLimit> {
        if node.broken {
            self.rest_of(node);
            return None;
        }
        let algorithm = node.algorithm.unwrap_or(self.defaults.algorithm);
        if algorithm == Algorithm::SlidingWindowLog && counting != Counting::Free {
            self.wrong(&node.place, Problem::LogNeedsFree);
        }
        if node.requests_per_unit.is_none() {
            self.odd(&node.place, Oddity::NoRequests);
        }
        let requests = node.requests_per_unit.as_ref().map_or(0, |it| it.value);
        let (name, replaces) = (self.name(node), self.replaces(node));
        let (window, shown) = self.window(node, requests)?;
        match Limit::new(algorithm, requests, window, node.burst.as_ref().map(|it| it.value)) {
            Ok(limit) => Some(RuleLimit { limit, shown, name, replaces }),
            Err(error) => {
                let number = match error {
                    LimitError::LogTooLong { .. } | LimitError::GcraTooFast { .. } => None,
                    _ => node.burst.as_ref(),
                };
                let number = number.or(node.requests_per_unit.as_ref());
                self.wrong(number.map_or(&node.place, |number| &number.place), error);
                None
            }
        }
    }

    /// Looks for mistakes that do not depend on what is broken.
    fn rest_of(&mut self, node: &'f LimitNode) {
        self.name(node);
        self.replaces(node);
        if let Some(unit) = node.unit.as_ref().filter(|it| Unit::from_name(&it.value).is_none()) {
            self.wrong(&unit.place, Problem::UnknownUnit);
        }
    }

    /// The window, and how it is shown.
    fn window(&mut self, node: &LimitNode, requests: u32) -> Option<(Window, Shown)> {
        let both = "unit and window stand together";
        match (&node.unit, &node.window) {
            (Some(_), Some(window)) => {
                self.wrong(&window.place, Problem::Window(both));
                None
            }
            (None, None) => {
                self.wrong(&node.place, Problem::Window("neither unit nor window is given"));
                None
            }
            (None, Some(window)) => {
                if let Some(multiplier) = &node.unit_multiplier {
                    let alone = "unit_multiplier stands without unit";
                    self.wrong(&multiplier.place, Problem::Window(alone));
                }
                let seconds = window.value.as_secs();
                if window.value.subsec_nanos() > 0 {
                    self.wrong(&window.place, Problem::WindowNotWhole);
                    return None;
                }
                let length = self.checked(&window.place, Window::from_seconds(seconds))?;
                Some((length, Shown::in_units(requests, length)))
            }
            (Some(unit), None) => {
                let Some(known) = Unit::from_name(&unit.value) else {
                    self.wrong(&unit.place, Problem::UnknownUnit);
                    return None;
                };
                let unit_multiplier = node.unit_multiplier.as_ref().map_or(1, |it| it.value);
                let length = Window::from_unit(known, unit_multiplier);
                let place = node.unit_multiplier.as_ref().map_or(&unit.place, |it| &it.place);
                let length = self.checked(place, length)?;
                Some((length, Shown { requests_per_unit: requests, unit: known, unit_multiplier }))
            }
        }
    }

    fn checked<T>(&mut self, place: &Place, result: Result<T, LimitError>) -> Option<T> {
        result.map_err(|error| self.wrong(place, error)).ok()
    }

    fn name(&mut self, node: &'f LimitNode) -> Option<Box<str>> {
        let name = node.name.as_ref().filter(|name| !name.value.is_empty())?;
        if name.value.contains('"') {
            self.odd(&name.place, Oddity::QuoteInName);
        }
        self.names.define(name);
        Some(name.value.as_str().into())
    }

    fn replaces(&mut self, node: &'f LimitNode) -> Box<[Box<str>]> {
        for replaced in &node.replaces {
            if replaced.value.is_empty() {
                self.wrong(&replaced.place, Problem::Missing("name"));
            } else if node.name.as_ref().is_some_and(|name| name.value == replaced.value) {
                self.wrong(&replaced.place, Problem::ReplacesItself(quoted(&replaced.value)));
            } else {
                self.names.replace(replaced);
            }
        }
        node.replaces.iter().map(|replaced| replaced.value.as_str().into()).collect()
    }
}
