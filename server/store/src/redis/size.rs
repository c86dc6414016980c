//! How much a server holds, asked beside the requests.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;

use super::{Reply, Stats, node::Node, topology::Topology};

/// How often every server in use is asked; beside that, whenever one has become of use.
const INTERVAL: Duration = Duration::from_secs(15);

/// What a server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Memory that it uses, in bytes.
    pub memory_used: u64,
    /// The most that it may use, in bytes; 0 for no bound.
    pub memory_max: u64,
    /// Keys in the database that is used.
    pub keys: u64,
}

impl Size {
    /// Reads what INFO says.
    fn read(info: &str, database: u8) -> Option<Self> {
        let number = |name| field(info, name)?.parse().ok();
        // A database without keys is not listed.
        let keys = field(info, &format!("db{database}")).map_or(Some(0), |keyspace| {
            keyspace.split(',').find_map(|it| it.strip_prefix("keys=")?.parse().ok())
        });
        let (memory_used, memory_max) = (number("used_memory")?, number("maxmemory")?);
        Some(Self { memory_used, memory_max, keys: keys? })
    }
}

/// A field of INFO.
pub(super) fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

/// Asks for ever.
pub(super) async fn watch(topology: Arc<Topology>, stats: Arc<Stats>, database: u8) {
    loop {
        let map = topology.map();
        join_all(map.nodes().iter().map(|node| ask(node, &stats, database))).await;
        let _changed = tokio::time::timeout(INTERVAL, topology.changed()).await;
    }
}

/// Who may not ask, or hears nothing, knows nothing.
async fn ask(node: &Node, stats: &Stats, database: u8) {
    let info = node.ask(&[b"INFO".as_slice(), b"memory", b"keyspace"]).await;
    let info = info.as_ref().and_then(Reply::as_str);
    if let Some(info) = info {
        stats.memory(&node.address, info);
    }
    node.set_size(info.and_then(|info| Size::read(info, database)));
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn info_is_read() {
        let memory = "# Memory\r\nused_memory:1048576\r\nused_memory_rss:9\r\nmaxmemory:0\r\n";
        let read = |keyspace: &str, database| Size::read(&format!("{memory}{keyspace}"), database);
        let size = |keys| Some(Size { memory_used: 1_048_576, memory_max: 0, keys });
        let keyspace = "# Keyspace\r\ndb0:keys=3,expires=2,avg_ttl=1\r\ndb10:keys=7,expires=0\r\n";
        assert_eq!(read(keyspace, 0), size(3));
        assert_eq!(read(keyspace, 10), size(7));
        assert_eq!(read(keyspace, 1), size(0));
        assert_eq!(read("", 0), size(0));
        assert_eq!(Size::read("# Memory\r\n", 0), None);
    }
}
