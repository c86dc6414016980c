//! Memory, keys, CPU time and clients of a server, as `INFO` reports them.

use std::time::Duration;

/// Memory, keys, CPU time and clients of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Used memory, in bytes.
    pub memory_used: u64,
    /// `maxmemory` in bytes; 0 for no bound.
    pub memory_max: u64,
    /// Keys in the selected database.
    pub keys: u64,
    /// CPU time since the server started, without child processes. `None` if the server does not report it.
    pub cpu: Option<Duration>,
    /// Connections of all clients. `None` if the server does not report them.
    pub clients: Option<u64>,
    /// `maxclients`. `None` if the server does not report it.
    pub clients_max: Option<u64>,
}

impl ServerInfo {
    /// Parses the reply to `INFO memory keyspace cpu clients`.
    pub(super) fn read(info: &str, database: u8) -> Option<Self> {
        let number = |name| field(info, name)?.parse().ok();
        // Redis does not list a database without keys.
        let keys = field(info, &format!("db{database}")).map_or(Some(0), |keyspace| {
            keyspace.split(',').find_map(|it| it.strip_prefix("keys=")?.parse().ok())
        });
        let (memory_used, memory_max) = (number("used_memory")?, number("maxmemory")?);
        let (clients, clients_max) = (number("connected_clients"), number("maxclients"));
        let seconds = |name| Duration::try_from_secs_f64(field(info, name)?.parse().ok()?).ok();
        let cpu = seconds("used_cpu_sys")
            .and_then(|system| system.checked_add(seconds("used_cpu_user")?));
        Some(Self { memory_used, memory_max, keys: keys?, cpu, clients, clients_max })
    }
}

/// The value of a field in the reply to `INFO`.
pub(super) fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::ServerInfo;

    #[test]
    fn info_is_read() {
        let memory = "# Memory\r\nused_memory:1048576\r\nused_memory_rss:9\r\nmaxmemory:0\r\n";
        let read =
            |keyspace: &str, database| ServerInfo::read(&format!("{memory}{keyspace}"), database);
        let size = |keys| {
            let (memory_used, memory_max) = (1_048_576, 0);
            let (cpu, clients, clients_max) = (None, None, None);
            Some(ServerInfo { memory_used, memory_max, keys, cpu, clients, clients_max })
        };
        let keyspace = "# Keyspace\r\ndb0:keys=3,expires=2,avg_ttl=1\r\ndb10:keys=7,expires=0\r\n";
        assert_eq!(read(keyspace, 0), size(3));
        assert_eq!(read(keyspace, 10), size(7));
        assert_eq!(read(keyspace, 1), size(0));
        assert_eq!(read("", 0), size(0));
        assert_eq!(ServerInfo::read("# Memory\r\n", 0), None);
    }

    #[test]
    fn unreported_cpu_time_and_clients_are_none() {
        let read = |rest: &str| {
            let info = format!("used_memory:1\r\nmaxmemory:0\r\n{rest}");
            let info = ServerInfo::read(&info, 0).unwrap();
            (info.cpu.map(|it| it.as_micros()), info.clients, info.clients_max)
        };
        let cpu =
            "used_cpu_sys:1.250000\r\nused_cpu_user:2.500001\r\nused_cpu_sys_children:9.0\r\n";
        let clients = "connected_clients:12\r\ncluster_connections:0\r\nmaxclients:10000\r\n";
        assert_eq!(read(&format!("{cpu}{clients}")), (Some(3_750_001), Some(12), Some(10_000)));
        assert_eq!(read("connected_clients:12\r\n"), (None, Some(12), None));
        assert_eq!(read("used_cpu_sys:1.0\r\nused_cpu_user:-2\r\n"), (None, None, None));
        assert_eq!(read("used_cpu_sys:nan\r\nused_cpu_user:1\r\n"), (None, None, None));
        assert_eq!(read("used_cpu_sys:1e30\r\nused_cpu_user:1\r\n"), (None, None, None));
    }
}
