//! The slots of a Redis Cluster, and their owners by `CLUSTER NODES`.

use std::ops::RangeInclusive;

use crc16::{State, XMODEM};
use sluicegate_core::CounterKey;

use super::{Address, Reply};

/// Number of slots of a Redis Cluster.
pub(super) const SLOTS: usize = SLOTS_MAX as usize;
const SLOTS_MAX: u16 = 16_384;

/// The slot of a counter in a Redis Cluster. The key prefix does not change it.
#[must_use]
pub fn hash_slot(key: &CounterKey) -> u16 {
    key_slot(key.as_bytes())
}

/// The slot of a key: that of its hash tag, the text between its first braces, if it has one.
pub(super) fn key_slot(key: &[u8]) -> u16 {
    let tag = || {
        let begin = memchr::memchr(b'{', key)? + 1;
        let rest = key.get(begin..)?;
        rest.get(..memchr::memchr(b'}', rest)?).filter(|tag| !tag.is_empty())
    };
    State::<XMODEM>::calculate(tag().unwrap_or(key)) % SLOTS_MAX
}

/// The most nodes of a cluster, Redis replicas included. Redis Cluster is made for up to 1,000.
pub(super) const NODES_MAX: usize = 4096;

/// A node as another node of the cluster lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterNode {
    pub(super) address: Address,
    /// Other addresses that redirections may use for it.
    pub(super) aliases: Vec<Address>,
    /// The slots that it claims, if it is a primary.
    pub(super) claim: Option<Claim>,
}

/// The slots that a primary claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Increases with every change of ownership: of two claims to a slot, the one with the higher epoch applies.
    pub(super) epoch: u64,
    pub(super) slots: Vec<RangeInclusive<u16>>,
}

/// Parses the reply to `CLUSTER NODES` by `replying_server`. `None` if it is not a list of nodes, or
/// has more than [`NODES_MAX`] of them, or more slots than a cluster has: a hostile list could repeat them without
/// bound.
///
/// `hostnames` prefers hostnames to IP addresses. They are needed with TLS, because certificates contain them.
pub(super) fn parse_cluster_nodes(
    reply: &Reply,
    replying_server: &Address,
    hostnames: bool,
) -> Option<Vec<ClusterNode>> {
    let lines = reply.as_str()?.lines();
    let nodes: Vec<_> = lines
        .filter_map(|line| parse_line(line, replying_server, hostnames))
        .take(NODES_MAX + 1)
        .collect();
    let ranges = nodes.iter().filter_map(|node| node.claim.as_ref()).flat_map(|it| &it.slots);
    let owned = ranges.map(ExactSizeIterator::len).sum::<usize>();
    (nodes.len() <= NODES_MAX && owned <= SLOTS).then_some(nodes)
}

/// `id host:port@bus[,hostname[,…]] flags primary ping pong epoch link slots…`
fn parse_line(line: &str, replying_server: &Address, hostnames: bool) -> Option<ClusterNode> {
    let mut fields = line.split(' ');
    let (_id, endpoints, flags) = (fields.next()?, fields.next()?, fields.next()?);
    let is = |wanted: &str| flags.split(',').any(|flag| flag == wanted);
    if is("noaddr") || is("handshake") {
        return None;
    }
    let epoch = fields.nth(3)?.parse().ok()?;
    let _link = fields.next()?;
    let claim =
        is("master").then(|| Claim { epoch, slots: fields.filter_map(parse_range).collect() });
    let (endpoint, names) = endpoints.split_once(',').unwrap_or((endpoints, ""));
    let (endpoint, _bus) = endpoint.split_once('@')?;
    let (host, port) = endpoint.rsplit_once(':')?;
    let name = names.split(',').next().filter(|name| !matches!(*name, "" | "?"));
    let by_host = resolve_address(host, port, replying_server)?;
    let by_name = name.and_then(|name| resolve_address(name, port, replying_server));
    let (address, aliases) = match by_name {
        Some(by_name) if hostnames => (by_name, vec![by_host]),
        other => (by_host, other.into_iter().collect()),
    };
    Some(ClusterNode { address, aliases, claim })
}

/// A range `0-5460` or a slot `42`. `None` for a moving slot (`[93-<-…]`), which is in a range of its owner, too.
fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (usize::from(last) < SLOTS).then_some(first..=last)
}

/// The address `host:port` in a redirection by `replying_server`.
pub(super) fn parse_redirection(text: &str, replying_server: &Address) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    resolve_address(host, port, replying_server)
}

/// An address as a server reports it. If the host is empty or `?`, because the server does not know its own, it is that
/// of `replying_server`.
fn resolve_address(host: &str, port: &str, replying_server: &Address) -> Option<Address> {
    let host = if matches!(host, "" | "?") { &replying_server.host } else { host };
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_a_library() {
        for key in
            ["", "a", "{}", "{}{a}", "a{b", "a}b{c}", "{a}{b}", "{{a}}", "p:s1:fw:1:{api:k=v}:x"]
        {
            assert_eq!(key_slot(key.as_bytes()), redis_protocol::redis_keyslot(key.as_bytes()));
        }
    }

    #[test]
    fn nodes_are_read() {
        let text = "\
07c3 127.0.0.1:30004@31004,host4 slave e7d1 0 1426238317239 4 connected
67ed 127.0.0.1:30002@31002,host2,shard-id=1 master - 0 1426238316232 2 connected 5461-10922
292f ::1:30003@31003 master,fail - 0 1426238318243 3 disconnected 10923-16383 [93-<-292f]
e7d1 :30001@31001,? myself,master - 0 0 17 connected 0-5000 5002 5004-5460
aaaa :0@0 master,noaddr - 0 0 6 disconnected 5001
6ec2 127.0.0.1:30005@31005 master - 0 0 5 connected
bad line";
        let replying_server = Address { host: "here".to_owned(), port: 1 };
        let text = &Reply::Text(text.as_bytes().to_vec());
        let primary = |epoch, slots| Some(Claim { epoch, slots });
        let seen = parse_cluster_nodes(text, &replying_server, false).unwrap();
        let short: Vec<_> =
            seen.iter().map(|it| (it.address.to_string(), it.claim.clone())).collect();
        assert_eq!(
            short,
            [
                ("127.0.0.1:30004".to_owned(), None),
                ("127.0.0.1:30002".to_owned(), primary(2, vec![5461..=10922])),
                ("[::1]:30003".to_owned(), primary(3, vec![10923..=16383])),
                ("here:30001".to_owned(), primary(17, vec![0..=5000, 5002..=5002, 5004..=5460])),
                ("127.0.0.1:30005".to_owned(), primary(5, vec![])),
            ]
        );
        for (hostnames, address, alias) in
            [(false, "127.0.0.1:30002", "host2:30002"), (true, "host2:30002", "127.0.0.1:30002")]
        {
            let seen = &parse_cluster_nodes(text, &replying_server, hostnames).unwrap()[1];
            assert_eq!(
                (&*seen.address.to_string(), &*seen.aliases[0].to_string()),
                (address, alias)
            );
        }
        let line = "e7d1 127.0.0.1:1@2 master - 0 0 1 connected\n";
        for (lines, expected) in [(NODES_MAX, Some(NODES_MAX)), (NODES_MAX + 1, None)] {
            let text = Reply::Text(line.repeat(lines).into_bytes());
            assert_eq!(
                parse_cluster_nodes(&text, &replying_server, false).map(|it| it.len()),
                expected
            );
        }
        for (ranges, expected) in [("0-8191 8192-16383", Some(1)), ("0-8191 8191-16383", None)] {
            let line = format!("e7d1 127.0.0.1:1@2 master - 0 0 1 connected {ranges}");
            let text = Reply::Text(line.into_bytes());
            assert_eq!(
                parse_cluster_nodes(&text, &replying_server, false).map(|it| it.len()),
                expected,
                "{ranges}"
            );
        }
        assert_eq!(parse_cluster_nodes(&Reply::Integer(1), &replying_server, false), None);
        assert_eq!(
            parse_redirection(":7", &replying_server).map(|it| it.to_string()),
            Some("here:7".to_owned())
        );
        assert_eq!(
            parse_redirection("a:7", &replying_server).map(|it| it.to_string()),
            Some("a:7".to_owned())
        );
    }
}
