//! What a server that is started in a terminal prints: a first request to try.

use std::{
    io::{self, IsTerminal as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use sluicegate_core::{request::Entry, rules::RuleSet};
use sluicegate_proto::text::printable_lines;

/// The value of each entry of the request.
const VALUE: &str = "demo";

/// Prints a command that sends a first request, if a person looks at the output.
pub(super) fn print(http: SocketAddr, rules: &RuleSet) {
    let text = || printable_lines(&format!("Try it: {}", command(http, rules))).into_owned();
    if io::stderr().is_terminal() {
        let _closed = writeln!(io::stderr(), "{}", text());
    } else if io::stdout().is_terminal() {
        let _closed = writeln!(io::stdout(), "{}", text());
    }
}

/// A command that sends a request to the HTTP listener, for the first rule that a descriptor of keys alone can meet.
fn command(http: SocketAddr, rules: &RuleSet) -> String {
    let mut address = http;
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let (domain, keys) = first_match(rules);
    let entries: Vec<_> =
        keys.iter().map(|key| serde_json::json!({"key": key, "value": VALUE})).collect();
    let body = serde_json::json!({"domain": domain, "descriptors": [{"entries": entries}]});
    // In single quotes a shell takes everything literally but a single quote.
    let body = body.to_string().replace('\'', r"'\''");
    format!("curl -i http://{address}/json -d '{body}'")
}

/// The domain and the keys of a descriptor that meets a rule; those of any descriptor where each rule asks for values.
fn first_match(rules: &RuleSet) -> (&str, Vec<&str>) {
    let matching = rules.rules().find_map(|(domain, rule)| {
        let keys: Vec<_> = rule.path.split('.').collect();
        let entries: Vec<_> =
            keys.iter().map(|key| Entry { key: key.as_bytes(), value: VALUE.as_bytes() }).collect();
        let met = domain.find(&entries).rule?;
        (met.id == rule.id).then_some((&*domain.name, keys))
    });
    let first = || rules.domains().next().map_or("", |domain| &*domain.name);
    matching.unwrap_or_else(|| (first(), vec!["key"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn for_limits(http: &str, limits: &str) -> String {
        command(http.parse().unwrap(), &sluicegate_limits::parse("a.yaml", limits).unwrap())
    }

    #[test]
    fn the_first_request_meets_a_rule() {
        let limits = "
domain: it's
descriptors:
  - key: tier
    value: free
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: tenant
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 1}
";
        assert_eq!(
            for_limits("0.0.0.0:8080", limits),
            r#"curl -i http://127.0.0.1:8080/json -d '{"domain":"it'\''s","descriptors":[{"entries":[{"key":"tenant","value":"demo"},{"key":"user","value":"demo"}]}]}'"#
        );
    }

    #[test]
    fn limits_for_certain_values_alone_give_a_request_too() {
        let limits = "{domain: a, descriptors: [{key: tier, value: free}]}";
        assert_eq!(
            for_limits("[::]:1", limits),
            r#"curl -i http://[::1]:1/json -d '{"domain":"a","descriptors":[{"entries":[{"key":"key","value":"demo"}]}]}'"#
        );
    }
}
