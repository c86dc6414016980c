//! Requests to a rate limit service.

use std::time::Duration;

use bytes::Bytes;
use sluicegate_proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::RateLimitRequest,
};

use crate::Unit;

/// A rate limit request: a domain and descriptors.
///
/// The request is allowed if every descriptor is within its limit. Each descriptor is charged one hit, unless hits are
/// set here for all descriptors, or on a [`Descriptor`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Check {
    domain: String,
    descriptors: Vec<Descriptor>,
    hits: Option<Hits>,
}

impl Check {
    /// A check in `domain`. It needs at least one descriptor.
    pub fn new(domain: impl Into<String>) -> Self {
        Self { domain: domain.into(), descriptors: Vec::new(), hits: None }
    }

    /// Adds a descriptor: its entries, or a [`Descriptor`] with options.
    pub fn descriptor(mut self, descriptor: impl Into<Descriptor>) -> Self {
        self.descriptors.push(descriptor.into());
        self
    }

    /// Adds several descriptors.
    pub fn descriptors(mut self, descriptors: impl IntoIterator<Item = Descriptor>) -> Self {
        self.descriptors.extend(descriptors);
        self
    }

    /// Sets the hits to charge. 0 is a [`peek`](Self::peek).
    pub const fn hits(mut self, hits: u64) -> Self {
        self.hits = Some(Hits::Charge(hits));
        self
    }

    /// Charges nothing, and reports the state of the limits.
    pub const fn peek(self) -> Self {
        self.hits(0)
    }

    /// Refunds hits that were charged before. Services with an API older than Envoy 1.38's charge
    /// them instead.
    pub const fn refund(mut self, hits: u64) -> Self {
        self.hits = Some(Hits::Refund(hits));
        self
    }

    /// The check that refunds what this one charged.
    pub(crate) fn undo(&self) -> Self {
        let mut refund = self.clone();
        refund.hits = None;
        for descriptor in &mut refund.descriptors {
            descriptor.hits = Some(match descriptor.hits.or(self.hits) {
                None => Hits::Refund(1),
                Some(Hits::Charge(hits)) if hits > 0 => Hits::Refund(hits),
                Some(Hits::Charge(_) | Hits::Refund(_)) => Hits::Charge(0),
            });
        }
        refund
    }

    /// What checks of the same counters have in common.
    pub(crate) fn key(&self) -> CheckKey {
        let entries = self.descriptors.iter().map(|it| it.entries.clone()).collect();
        CheckKey { domain: self.domain.clone(), entries }
    }

    /// Whether each descriptor, in order, brings a limit with it.
    pub(crate) fn override_flags(&self) -> Vec<bool> {
        self.descriptors.iter().map(|descriptor| descriptor.limit.is_some()).collect()
    }
}

/// Domain and entries of a [`Check`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CheckKey {
    domain: String,
    entries: Vec<Vec<(Bytes, Bytes)>>,
}

impl From<Check> for RateLimitRequest {
    fn from(check: Check) -> Self {
        // On the request, `hits_addend` is a 32-bit number, 0 means unset, and there is no sign. So peeks, refunds and
        // larger numbers are set on each descriptor.
        let request_hits = match check.hits {
            Some(Hits::Charge(hits)) => u32::try_from(hits).ok().filter(|hits| *hits > 0),
            _ => None,
        };
        let inherited = if request_hits.is_some() { None } else { check.hits };
        Self {
            domain: check.domain,
            descriptors: check
                .descriptors
                .into_iter()
                .map(|descriptor| descriptor.message(inherited))
                .collect(),
            hits_addend: request_hits.unwrap_or_default(),
        }
    }
}

/// A descriptor: entries of key and value, in order.
///
/// Built from an array or a [`Vec`] of pairs of bytes: `&str`, [`String`], [`Vec<u8>`],
/// [`Bytes`]. Values need not be UTF-8, and may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Descriptor {
    entries: Vec<(Bytes, Bytes)>,
    hits: Option<Hits>,
    limit: Option<LimitOverride>,
}

impl Descriptor {
    /// A descriptor of these entries.
    pub fn new<K: AsRef<[u8]>, V: AsRef<[u8]>>(entries: impl IntoIterator<Item = (K, V)>) -> Self {
        let copy = Bytes::copy_from_slice;
        let entries = entries
            .into_iter()
            .map(|(key, value)| (copy(key.as_ref()), copy(value.as_ref())))
            .collect();
        Self { entries, hits: None, limit: None }
    }

    /// Sets the hits to charge. 0 is a [`peek`](Self::peek).
    pub const fn hits(mut self, hits: u64) -> Self {
        self.hits = Some(Hits::Charge(hits));
        self
    }

    /// Charges nothing, and reports the state of the limit.
    pub const fn peek(self) -> Self {
        self.hits(0)
    }

    /// Refunds hits that were charged before. Services with an API older than Envoy 1.38's charge
    /// them instead.
    pub const fn refund(mut self, hits: u64) -> Self {
        self.hits = Some(Hits::Refund(hits));
        self
    }

    /// Overrides the limit that the service has.
    pub const fn limit(mut self, limit: LimitOverride) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Keys and values, in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.entries.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    /// Replaces bytes that are not UTF-8 by U+FFFD. A service whose entries are strings would fail the call, and with
    /// failure mode open a caller could choose such a value to pass.
    #[cfg(feature = "tower")]
    pub(crate) fn into_utf8(mut self) -> Self {
        for text in self.entries.iter_mut().flat_map(|(key, value)| [key, value]) {
            if let std::borrow::Cow::Owned(replaced) = String::from_utf8_lossy(text) {
                *text = replaced.into();
            }
        }
        self
    }

    fn message(self, inherited: Option<Hits>) -> RateLimitDescriptor {
        let (hits_addend, is_negative_hits) = match self.hits.or(inherited) {
            None => (None, false),
            Some(Hits::Charge(hits)) => (Some(hits), false),
            Some(Hits::Refund(hits)) => (Some(hits), true),
        };
        RateLimitDescriptor {
            entries: self.entries.into_iter().map(|(key, value)| Entry { key, value }).collect(),
            limit: self.limit.map(LimitOverride::message),
            hits_addend,
            is_negative_hits,
        }
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>, const N: usize> From<[(K, V); N]> for Descriptor {
    fn from(entries: [(K, V); N]) -> Self {
        Self::new(entries)
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> From<Vec<(K, V)>> for Descriptor {
    fn from(entries: Vec<(K, V)>) -> Self {
        Self::new(entries)
    }
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(K, V)> for Descriptor {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self::new(entries)
    }
}

/// A limit in the request.
///
/// The service applies it only in a domain that it knows: a limits file with nothing but the domain is enough.
/// Otherwise [`Client::check`](crate::Client::check) returns
/// [`OverrideNotApplied`](crate::CheckError::OverrideNotApplied).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct LimitOverride {
    requests_per_unit: u32,
    unit: Unit,
    unit_multiplier: Option<u32>,
}

impl LimitOverride {
    /// A limit of `requests` per unit.
    ///
    /// Envoy's API has no [`Unit::Week`] here, but Sluicegate and envoyproxy/ratelimit accept it.
    pub const fn new(requests_per_unit: u32, unit: Unit) -> Self {
        Self { requests_per_unit, unit, unit_multiplier: None }
    }

    /// A limit of `requests` in each window, which is rounded up to whole seconds.
    pub const fn per_window(requests: u32, window: Duration) -> Self {
        let partial = if window.subsec_nanos() > 0 { 1 } else { 0 };
        let seconds = window.as_secs().saturating_add(partial);
        let (unit, length) = match seconds {
            0 => return Self::new(requests, Unit::Second),
            _ if seconds.is_multiple_of(24 * 60 * 60) => (Unit::Day, 24 * 60 * 60),
            _ if seconds.is_multiple_of(60 * 60) => (Unit::Hour, 60 * 60),
            _ if seconds.is_multiple_of(60) => (Unit::Minute, 60),
            _ => (Unit::Second, 1),
        };
        let units = seconds / length;
        #[expect(clippy::cast_possible_truncation, reason = "u32::try_from is not const")]
        let units = if units > u32::MAX as u64 { u32::MAX } else { units as u32 };
        Self::new(requests, unit).unit_multiplier(units)
    }

    /// Sets the units per window. Services older than Envoy 1.40 ignore it.
    pub const fn unit_multiplier(mut self, units: u32) -> Self {
        self.unit_multiplier = Some(units);
        self
    }

    fn message(self) -> RateLimitOverride {
        RateLimitOverride {
            requests_per_unit: self.requests_per_unit,
            unit: self.unit.number(),
            unit_multiplier: self.unit_multiplier,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hits {
    Charge(u64),
    Refund(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `hits_addend` of the request, then `hits_addend` and `is_negative_hits` of each descriptor.
    fn hits(check: Check) -> (u32, Vec<(Option<u64>, bool)>) {
        let message = RateLimitRequest::from(check);
        let hits = message.descriptors.iter().map(|it| (it.hits_addend, it.is_negative_hits));
        (message.hits_addend, hits.collect())
    }

    fn check() -> Check {
        Check::new("d").descriptor([("a", "1")]).descriptor([("b", "2")])
    }

    #[test]
    fn peeks_refunds_and_large_hits_are_set_on_each_descriptor() {
        let unset = (None, false);
        assert_eq!(hits(check()), (0, vec![unset, unset]));
        assert_eq!(hits(check().hits(3)), (3, vec![unset, unset]));
        assert_eq!(hits(check().peek()), (0, vec![(Some(0), false); 2]));
        assert_eq!(hits(check().refund(3)), (0, vec![(Some(3), true); 2]));
        let many = u64::from(u32::MAX) + 1;
        assert_eq!(hits(check().hits(many)), (0, vec![(Some(many), false); 2]));
    }

    #[test]
    fn hits_of_a_descriptor_override_those_of_the_request() {
        let own = Descriptor::from([("c", "3")]).hits(7);
        let refund = Descriptor::from([("c", "3")]).refund(7);
        let check = check().descriptor(own).descriptor(refund);
        assert_eq!(
            hits(check.clone().peek()),
            (0, vec![(Some(0), false), (Some(0), false), (Some(7), false), (Some(7), true)])
        );
        assert_eq!(
            hits(check.hits(2)),
            (2, vec![(None, false), (None, false), (Some(7), false), (Some(7), true)])
        );
    }

    #[test]
    fn undo_refunds_what_was_charged() {
        let own = Descriptor::from([("c", "3")]);
        let check = check().descriptor(own.clone().hits(7)).descriptor(own.refund(7)).hits(2);
        assert_eq!(hits(check.undo()), {
            let refund = |hits| (Some(hits), true);
            (0, vec![refund(2), refund(2), refund(7), (Some(0), false)])
        });
        assert_eq!(hits(Check::new("d").descriptor([("a", "1")]).undo()).1, [(Some(1), true)]);
        assert_eq!(hits(self::check().peek().undo()).1, [(Some(0), false); 2]);
    }

    #[test]
    fn overrides_have_windows_of_any_length() {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        for (window, unit, units) in [
            (minutes(15), Unit::Minute, 15),
            (Duration::from_secs(90), Unit::Second, 90),
            (Duration::from_millis(1_500), Unit::Second, 2),
            (minutes(120), Unit::Hour, 2),
            (minutes(24 * 60), Unit::Day, 1),
        ] {
            let expected = LimitOverride::new(5, unit).unit_multiplier(units);
            assert_eq!(LimitOverride::per_window(5, window), expected);
        }
        assert_eq!(LimitOverride::per_window(5, Duration::ZERO).unit, Unit::Second);
        assert_eq!(LimitOverride::per_window(5, Duration::MAX).unit_multiplier, Some(u32::MAX));
    }

    #[test]
    fn entries_are_any_bytes() {
        let owned = Descriptor::from(vec![(String::from("k"), vec![0xff_u8])]);
        let borrowed = Descriptor::from([("k", b"\xff")]);
        let collected: Descriptor = [(Bytes::from("k"), &[0xff_u8][..])].into_iter().collect();
        assert_eq!(owned, borrowed);
        assert_eq!(owned, collected);
        assert_eq!(owned.entries().collect::<Vec<_>>(), [(&b"k"[..], &b"\xff"[..])]);
    }
}
