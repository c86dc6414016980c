//! Descriptors as people type them.

use std::ffi::OsString;

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use sluicegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
pub(super) use sluicegate_proto::text::descriptor::printable_bytes;
use sluicegate_proto::text::descriptor::{self, InvalidDescriptor};

use sluicegate_client::{Check, Descriptor};

/// What to ask about.
#[derive(Args, Clone, Debug)]
pub struct Question {
    /// Domain of the request.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: String,

    /// A descriptor of the request: one or more entries, in the order of the rules. Repeatable; the request is
    /// allowed if every descriptor is.
    ///
    /// A value may be empty and may contain `=`. Write `\,` for a comma and `\\` for a backslash.
    #[arg(long = "descriptor", value_name = "KEY=VALUE,...", required = true)]
    #[arg(value_parser = typed_descriptors())]
    pub descriptors: Vec<Descriptor>,
}

impl Question {
    /// The question with so many hits; a negative number gives hits back.
    pub(super) fn check(&self, hits: i64) -> Check {
        let check = Check::new(&self.domain).descriptors(self.descriptors.iter().cloned());
        let number = hits.unsigned_abs();
        if hits < 0 { check.refund(number) } else { check.hits(number) }
    }
}

/// Reads what stands behind `--descriptor`.
pub(super) fn typed_descriptors() -> impl TypedValueParser<Value = Descriptor> {
    OsStringValueParser::new().try_map(typed_descriptor)
}

/// The entries from the wire as they can be typed.
pub(super) fn entries(entries: &[Entry]) -> String {
    descriptor::render(entries.iter().map(|entry| (&*entry.key, &*entry.value)))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that clap calls")]
fn typed_descriptor(text: OsString) -> Result<Descriptor, InvalidDescriptor> {
    parse(text.as_encoded_bytes())
}

/// Reads a descriptor.
pub(super) fn parse(text: &[u8]) -> Result<Descriptor, InvalidDescriptor> {
    descriptor::parse(text).map(Descriptor::from)
}

/// The descriptor as it can be typed.
pub(super) fn render(descriptor: &Descriptor) -> String {
    descriptor::render(descriptor.entries())
}
