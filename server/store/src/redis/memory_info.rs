//! Memory and keys of a server, as `INFO` reports them.

/// Memory and keys of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Used memory, in bytes.
    pub memory_used: u64,
    /// `maxmemory` in bytes; 0 for no bound.
    pub memory_max: u64,
    /// Keys in the selected database.
    pub keys: u64,
}

impl MemoryInfo {
    /// Parses the reply to `INFO memory keyspace`.
    pub(super) fn read(info: &str, database: u8) -> Option<Self> {
        let number = |name| field(info, name)?.parse().ok();
        // Redis does not list a database without keys.
        let keys = field(info, &format!("db{database}")).map_or(Some(0), |keyspace| {
            keyspace.split(',').find_map(|it| it.strip_prefix("keys=")?.parse().ok())
        });
        let (memory_used, memory_max) = (number("used_memory")?, number("maxmemory")?);
        Some(Self { memory_used, memory_max, keys: keys? })
    }
}

/// The value of a field in the reply to `INFO`.
pub(super) fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::MemoryInfo;

    #[test]
    fn info_is_read() {
        let memory = "# Memory\r\nused_memory:1048576\r\nused_memory_rss:9\r\nmaxmemory:0\r\n";
        let read =
            |keyspace: &str, database| MemoryInfo::read(&format!("{memory}{keyspace}"), database);
        let size = |keys| Some(MemoryInfo { memory_used: 1_048_576, memory_max: 0, keys });
        let keyspace = "# Keyspace\r\ndb0:keys=3,expires=2,avg_ttl=1\r\ndb10:keys=7,expires=0\r\n";
        assert_eq!(read(keyspace, 0), size(3));
        assert_eq!(read(keyspace, 10), size(7));
        assert_eq!(read(keyspace, 1), size(0));
        assert_eq!(read("", 0), size(0));
        assert_eq!(MemoryInfo::read("# Memory\r\n", 0), None);
    }
}
