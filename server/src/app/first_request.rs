//! The first request to try, which a server prints if it is started in a terminal.

use std::{
    io::{self, IsTerminal as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use sluicegate_core::{request::Entry, rules::RuleSet};
use sluicegate_proto::text::printable_lines;

/// The value of each entry of the request.
const VALUE: &str = "demo";

/// Prints a command that sends a first request, if the output is a terminal.
pub(super) fn print(http: SocketAddr, rules: &RuleSet) {
    let text = || printable_lines(&format!("Try it: {}", command(http, rules))).into_owned();
    if io::stderr().is_terminal() {
        let _closed = writeln!(io::stderr(), "{}", text());
    } else if io::stdout().is_terminal() {
        let _closed = writeln!(io::stdout(), "{}", text());
    }
}

/// A `curl` command for a request to the HTTP listener. The request matches the first rule that requires no particular
/// values.
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
    // Between single quotes, a shell interprets no character except the single quote.
    let body = body.to_string().replace('\'', r"'\''");
    format!("curl -i http://{address}/json -d '{body}'")
}

/// The domain and the keys of a descriptor that matches the first rule without particular values. If there is no such
/// rule, the descriptor matches no rule.
fn first_match(rules: &RuleSet) -> (&str, Vec<&str>) {
    let matching = rules.rules().find_map(|(domain, rule)| {
        let keys: Vec<_> = rule.path.split('.').collect();
        let entries: Vec<_> =
            keys.iter().map(|key| Entry { key: key.as_bytes(), value: VALUE.as_bytes() }).collect();
        let matched = domain.find(&entries).rule?;
        (matched.id == rule.id).then_some((&*domain.name, keys))
    });
    let first = || rules.domains().next().map_or("", |domain| &*domain.name);
    matching.unwrap_or_else(|| (first(), vec!["key"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn for_limits(http: &str, limits: &str) -> String {
        command(http.parse().unwrap(), &sluicegate_limits::compile_text("a.yaml", limits).unwrap())
    }

    #[test]
    fn the_first_request_matches_a_rule() {
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
    fn without_a_rule_for_all_values_the_request_matches_none() {
        let limits = "{domain: a, descriptors: [{key: tier, value: free}]}";
        assert_eq!(
            for_limits("[::]:1", limits),
            r#"curl -i http://[::1]:1/json -d '{"domain":"a","descriptors":[{"entries":[{"key":"key","value":"demo"}]}]}'"#
        );
    }
}
