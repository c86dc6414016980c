//! The descriptors of a load: templates with placeholders, and the numbers drawn for them.

use std::{ffi::OsString, ops::Range};

use clap::builder::{OsStringValueParser, TypedValueParser};
use sluicegate_proto::text::descriptor::{self, Entries, InvalidDescriptor};
use thiserror::Error;

/// Maximum N of a placeholder `{N}`. A weight is stored for each number.
const VALUES_MAX: usize = 1_000_000;

/// A descriptor. `{N}` in a value is replaced by a number from 1 to N.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    key: Vec<u8>,
    value: Vec<ValuePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValuePart {
    Text(Vec<u8>),
    /// The placeholder `{N}`, with N.
    Placeholder(usize),
}

/// Why a text is not a [`Template`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidTemplate {
    /// Not a descriptor.
    #[error(transparent)]
    Descriptor(#[from] InvalidDescriptor),
    /// A placeholder whose N is 0 or too large.
    #[error("a placeholder is {{1}} to {{{VALUES_MAX}}}, not {{{0}}}")]
    Values(String),
}

/// Two placeholders of one key have a different N.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "--descriptor: key {key} has both {{{first}}} and {{{second}}}; all placeholders of a key have one value in a request"
)]
pub(crate) struct ConflictingPlaceholders {
    key: String,
    first: usize,
    second: usize,
}

/// Parses a value of `--descriptor`.
pub(super) fn template_parser() -> impl TypedValueParser<Value = Template> {
    OsStringValueParser::new().try_map(parse_template)
}

#[expect(clippy::needless_pass_by_value, reason = "clap's signature of a parser")]
pub(super) fn parse_template(text: OsString) -> Result<Template, InvalidTemplate> {
    let entries = descriptor::parse(text.as_encoded_bytes())?;
    let entry = |(key, value): (Vec<u8>, Vec<u8>)| pieces(&value).map(|value| Entry { key, value });
    Ok(Template { entries: entries.into_iter().map(entry).collect::<Result<_, _>>()? })
}

fn pieces(value: &[u8]) -> Result<Vec<ValuePart>, InvalidTemplate> {
    let mut pieces = Vec::new();
    let mut rest = value;
    while let Some((Range { start, end }, digits)) = placeholder(rest) {
        let (before, after) = (rest.get(..start).unwrap_or_default(), rest.get(end..));
        if !before.is_empty() {
            pieces.push(ValuePart::Text(before.to_vec()));
        }
        let values = digits.parse().ok().filter(|values| (1..=VALUES_MAX).contains(values));
        pieces.push(ValuePart::Placeholder(values.ok_or(InvalidTemplate::Values(digits))?));
        rest = after.unwrap_or_default();
    }
    if !rest.is_empty() || pieces.is_empty() {
        pieces.push(ValuePart::Text(rest.to_vec()));
    }
    Ok(pieces)
}

/// The range of the first `{DIGITS}`, and the digits.
fn placeholder(text: &[u8]) -> Option<(Range<usize>, String)> {
    text.iter().enumerate().filter(|(_, byte)| **byte == b'{').find_map(|(start, _)| {
        let inside = text.get(start + 1..)?;
        let length = inside.iter().position(|byte| !byte.is_ascii_digit())?;
        let digits = inside.get(..length).filter(|digits| !digits.is_empty())?;
        let closed = inside.get(length) == Some(&b'}');
        let digits = String::from_utf8_lossy(digits).into_owned();
        closed.then_some((start..start + length + 2, digits))
    })
}

/// Random numbers of one request, one for each key with placeholders.
pub(super) type DrawnNumbers = Box<[u32]>;

/// Generator of requests.
#[derive(Debug, Default)]
pub(super) struct RequestGenerator {
    templates: Vec<Template>,
    /// Keys with placeholders.
    keys: Vec<PlaceholderKey>,
    random: fastrand::Rng,
}

/// A key with placeholders.
#[derive(Debug)]
struct PlaceholderKey {
    key: Vec<u8>,
    /// For each number the sum of the weights up to it.
    weights: Vec<f64>,
}

impl RequestGenerator {
    /// A generator of requests with a descriptor of each template. Number n has the weight `1 / n^zipf`.
    pub(super) fn new(
        templates: &[Template],
        zipf: f64,
        seed: u64,
    ) -> Result<Self, ConflictingPlaceholders> {
        let mut keys: Vec<PlaceholderKey> = Vec::new();
        for (entry, count) in templates.iter().flat_map(placeholders) {
            match keys.iter().find(|known| known.key == entry.key) {
                None => keys
                    .push(PlaceholderKey { key: entry.key.clone(), weights: weights(count, zipf) }),
                Some(known) if known.weights.len() == count => {}
                Some(known) => {
                    let (key, first) =
                        (descriptor::printable_bytes(&entry.key), known.weights.len());
                    return Err(ConflictingPlaceholders { key, first, second: count });
                }
            }
        }
        Ok(Self { templates: templates.to_vec(), keys, random: fastrand::Rng::with_seed(seed) })
    }

    /// Draws the numbers of the next request.
    pub(super) fn draw(&mut self) -> DrawnNumbers {
        let random = &mut self.random;
        let one = |values: &PlaceholderKey| {
            let total = values.weights.last().copied().unwrap_or_default();
            let at = random.f64() * total;
            let rank = values.weights.partition_point(|weight| *weight <= at);
            u32::try_from(rank.min(values.weights.len().saturating_sub(1)) + 1).unwrap_or(u32::MAX)
        };
        self.keys.iter().map(one).collect()
    }

    /// At most `most` draws. Without that maximum, they contain every number of every key.
    pub(super) fn samples(&self, most: usize) -> impl Iterator<Item = DrawnNumbers> {
        let longest = self.keys.iter().map(|values| values.weights.len()).max().unwrap_or(1);
        (0..longest.min(most)).map(|at| {
            let number = |values: &PlaceholderKey| {
                u32::try_from(at % values.weights.len().max(1) + 1).unwrap_or(u32::MAX)
            };
            self.keys.iter().map(number).collect()
        })
    }

    /// The descriptors of the request for which these numbers were drawn.
    pub(super) fn descriptors(&self, draw: &DrawnNumbers) -> Vec<Entries> {
        let value = |entry: &Entry| {
            let drawn = self.keys.iter().zip(draw).find(|(values, _)| values.key == entry.key);
            let number = drawn.map(|(_, number)| number.to_string()).unwrap_or_default();
            let piece = |piece: &ValuePart| match piece {
                ValuePart::Text(text) => text.clone(),
                ValuePart::Placeholder(_) => number.clone().into_bytes(),
            };
            (entry.key.clone(), entry.value.iter().flat_map(piece).collect())
        };
        let descriptor = |template: &Template| template.entries.iter().map(value).collect();
        self.templates.iter().map(descriptor).collect()
    }
}

/// The placeholders of a template: entry and N.
fn placeholders(template: &Template) -> impl Iterator<Item = (&Entry, usize)> {
    template.entries.iter().flat_map(|entry| {
        entry.value.iter().filter_map(move |piece| match piece {
            ValuePart::Placeholder(count) => Some((entry, *count)),
            ValuePart::Text(_) => None,
        })
    })
}

fn weights(count: usize, zipf: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let weight = |rank: usize| {
        sum += (rank as f64).powf(-zipf);
        sum
    };
    (1..=count).map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        parse_template(text.into()).unwrap()
    }

    fn problem(text: &str) -> String {
        parse_template(text.into()).unwrap_err().to_string()
    }

    fn text(requests: &RequestGenerator, draw: &DrawnNumbers) -> Vec<String> {
        let entries = requests.descriptors(draw);
        let line = |entries: &Entries| {
            descriptor::render(entries.iter().map(|(key, value)| (&**key, &**value)))
        };
        entries.iter().map(line).collect()
    }

    #[test]
    fn placeholders_of_one_key_have_one_number_per_request() {
        let templates = ["tenant=t-{3}", "tenant=t-{3},user={2}x{2},route=/a{}"].map(template);
        let requests = RequestGenerator::new(&templates, 0.0, 1).unwrap();
        assert_eq!(
            text(&requests, &DrawnNumbers::from([2, 1])),
            ["tenant=t-2", "tenant=t-2, user=1x1, route=/a{}"]
        );
        let samples: Vec<_> = requests.samples(10).collect();
        assert_eq!(samples, [[1, 1], [2, 2], [3, 1]].map(Box::<[u32]>::from));
        assert_eq!(requests.samples(2).count(), 2);
    }

    #[test]
    fn descriptors_without_placeholders_are_constant() {
        let mut requests = RequestGenerator::new(&[template("a=,b={x},c={}")], 0.0, 1).unwrap();
        let draw = requests.draw();
        assert_eq!((draw.len(), requests.samples(5).count()), (0, 1));
        assert_eq!(text(&requests, &draw), ["a=, b={x}, c={}"]);
    }

    #[test]
    fn invalid_templates_are_rejected_with_the_reason() {
        assert!(problem("a").contains("entry 1 (a) has no `=`"));
        assert_eq!(problem("a={0}"), "a placeholder is {1} to {1000000}, not {0}");
        assert_eq!(problem("a={1000001}"), "a placeholder is {1} to {1000000}, not {1000001}");
        let templates = ["a={2}", "a={3}"].map(template);
        let error = RequestGenerator::new(&templates, 0.0, 1).unwrap_err();
        assert!(error.to_string().contains("key a has both {2} and {3}"), "{error}");
    }

    /// How often each number occurs in 10,000 draws.
    fn drawn(zipf: f64, seed: u64) -> Vec<usize> {
        let mut requests = RequestGenerator::new(&[template("user={4}")], zipf, seed).unwrap();
        let draws: Vec<_> = (0..10_000).map(|_| requests.draw()[0]).collect();
        (1..=4).map(|number| draws.iter().filter(|drawn| **drawn == number).count()).collect()
    }

    #[test]
    fn numbers_are_drawn_by_their_weight() {
        for (zipf, shares) in [(0.0, [0.25; 4]), (1.0, [0.48, 0.24, 0.16, 0.12])] {
            for (count, share) in drawn(zipf, 7).into_iter().zip(shares) {
                assert!((count as f64 / 10_000.0 - share).abs() < 0.03, "{zipf}: {count} {share}");
            }
        }
        assert_eq!(drawn(1.0, 7), drawn(1.0, 7));
        assert_ne!(drawn(1.0, 7), drawn(1.0, 8));
    }
}
