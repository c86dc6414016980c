//! Arguments of `sluicegate validate --explain`.

use std::ffi::OsString;

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser as _},
};
use sluicegate_proto::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
    text::descriptor::{self, InvalidDescriptor},
};
use sluicegate_store::redis::KeyPrefix;

/// The request that `--explain` explains.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Explain")]
pub struct ExplainArguments {
    /// Explain which limits a request matches, instead of counting the rules. Uses the files alone; for the state of
    /// counters use sluicectl explain.
    #[arg(long, requires = "domain", requires = "descriptors")]
    pub explain: bool,

    /// Domain of the request to explain.
    #[arg(long, value_name = "DOMAIN", requires = "explain")]
    pub domain: Option<String>,

    /// A descriptor of the request to explain: one or more entries, in the order of the rules. Repeatable.
    ///
    /// A value may be empty and may contain `=`. Write `\,` for a comma and `\\` for a backslash.
    #[arg(long = "descriptor", value_name = "KEY=VALUE,...", requires = "explain")]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_descriptor))]
    pub descriptors: Vec<RateLimitDescriptor>,

    /// Prefix of every key in Redis, as for serve.
    #[arg(long, env = "SLUICEGATE_KEY_PREFIX", value_name = "TEXT", default_value = "")]
    pub key_prefix: KeyPrefix,
}

impl ExplainArguments {
    /// The request to explain; `None` without `--explain`.
    #[must_use]
    pub fn request(&self) -> Option<RateLimitRequest> {
        let domain = self.domain.clone().filter(|_| self.explain)?;
        Some(RateLimitRequest { domain, descriptors: self.descriptors.clone(), hits_addend: 0 })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "clap requires this signature")]
fn parse_descriptor(text: OsString) -> Result<RateLimitDescriptor, InvalidDescriptor> {
    let entries = descriptor::parse(text.as_encoded_bytes())?;
    let entry = |(key, value): (Vec<u8>, Vec<u8>)| Entry { key: key.into(), value: value.into() };
    let entries = entries.into_iter().map(entry).collect();
    Ok(RateLimitDescriptor { entries, ..RateLimitDescriptor::default() })
}
