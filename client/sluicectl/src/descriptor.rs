//! Descriptors on the command line.

use std::ffi::OsString;

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};
use sluicegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
pub(super) use sluicegate_proto::text::descriptor::printable_bytes;
use sluicegate_proto::text::descriptor::{self, InvalidDescriptor};

use sluicegate_client::{Check, Descriptor};

/// Domain and descriptors of a request.
#[derive(Args, Clone, Debug)]
pub struct RequestArguments {
    /// Domain of the request.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: String,

    /// A descriptor of the request: one or more entries, the outermost level of the rules first. Repeatable;
    /// the request is allowed if every descriptor is.
    ///
    /// A value may be empty and may contain `=`. Write `\,` for a comma and `\\` for a backslash.
    #[arg(long = "descriptor", value_name = "KEY=VALUE,...", required = true)]
    #[arg(value_parser = descriptor_parser())]
    pub descriptors: Vec<Descriptor>,
}

impl RequestArguments {
    /// The request with this number of hits. A negative number is a refund.
    pub(super) fn check(&self, hits: i64) -> Check {
        let check = Check::new(&self.domain).descriptors(self.descriptors.iter().cloned());
        let count = hits.unsigned_abs();
        if hits < 0 { check.refund(count) } else { check.hits(count) }
    }
}

/// Parses a value of `--descriptor`.
pub(super) fn descriptor_parser() -> impl TypedValueParser<Value = Descriptor> {
    OsStringValueParser::new().try_map(parse_argument)
}

/// The entries of a message, in the syntax of `--descriptor`.
pub(super) fn entries(entries: &[Entry]) -> String {
    descriptor::render(entries.iter().map(|entry| (&*entry.key, &*entry.value)))
}

#[expect(clippy::needless_pass_by_value, reason = "clap's signature of a parser")]
fn parse_argument(text: OsString) -> Result<Descriptor, InvalidDescriptor> {
    parse(text.as_encoded_bytes())
}

/// Parses a descriptor.
pub(super) fn parse(text: &[u8]) -> Result<Descriptor, InvalidDescriptor> {
    descriptor::parse(text).map(Descriptor::from)
}

/// The descriptor, in the syntax of `--descriptor`.
pub(super) fn render(descriptor: &Descriptor) -> String {
    descriptor::render(descriptor.entries())
}
