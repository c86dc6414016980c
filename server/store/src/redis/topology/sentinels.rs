//! Queries sentinels for the primary.

use std::collections::HashMap;

use crate::redis::{
    Address, Reply, Stats,
    connection::{ConnectError, Connection, Password, RedisConnectionSettings},
    error_code::is_password_rejected,
};

/// Connections to sentinels. They are queried in turn, because one of them may be partitioned from the others together
/// with a former primary.
#[derive(Default)]
pub(super) struct Sentinels {
    connections: HashMap<Address, Connection>,
    next: usize,
}

impl Sentinels {
    /// Address and epoch of the primary of this name, by the next sentinel that replies.
    pub(super) async fn query_primary(
        &mut self,
        addresses: &[Address],
        name: &str,
        settings: &RedisConnectionSettings,
        stats: &Stats,
    ) -> Option<(Address, u64)> {
        let first = self.next;
        self.next = self.next.wrapping_add(1);
        for step in 0..addresses.len() {
            let address = addresses.get(first.wrapping_add(step) % addresses.len())?;
            match self.query(address, name, settings).await {
                Ok(Some(found)) => return Some(found),
                Ok(None) => stats.warn_no_topology(address, "knows no primary of that name"),
                Err(error) => {
                    self.connections.remove(address);
                    stats.warn_no_topology(address, &error.to_string());
                }
            }
        }
        None
    }

    async fn query(
        &mut self,
        address: &Address,
        name: &str,
        settings: &RedisConnectionSettings,
    ) -> Result<Option<(Address, u64)>, ConnectError> {
        if !self.connections.contains_key(address) {
            self.connections.insert(address.clone(), connect(address, settings).await?);
        }
        let Some(connection) = self.connections.get(address) else { return Ok(None) };
        let query = async |what| {
            connection.query(settings.connect_timeout, &["SENTINEL", what, name]).await
        };
        // `SENTINEL MASTER` is queried for the epoch only: while Redis replicas are switched to a new primary, it
        // reports the old primary's address with the new epoch.
        let address = query("GET-MASTER-ADDR-BY-NAME").await?;
        let [host, port] = address.elements() else { return Ok(None) };
        let fields = query("MASTER").await?;
        let found = || {
            let (epochs, []) = fields.elements().as_chunks::<2>() else { return None };
            let is_epoch = |name: &Reply| name.as_str() == Some("config-epoch");
            let [_, epoch] = epochs.iter().find(|[name, _]| is_epoch(name))?;
            let (host, port) = (host.as_str()?.to_owned(), port.as_str()?.parse().ok()?);
            Some((Address { host, port }, epoch.as_str()?.parse().ok()?))
        };
        Ok(found())
    }
}

/// Connects to a sentinel: with the password of the servers and, if the sentinel rejects it, without one, because many
/// sentinels have none.
async fn connect(
    address: &Address,
    settings: &RedisConnectionSettings,
) -> Result<Connection, ConnectError> {
    // Sentinels have no databases.
    let settings = RedisConnectionSettings { database: 0, ..settings.clone() };
    match Connection::open(address, &settings).await {
        Err(ConnectError::ErrorReply(why)) if is_password_rejected(&why) => {
            let open =
                RedisConnectionSettings { username: None, password: Password::None, ..settings };
            Connection::open(address, &open).await.map_err(|_| ConnectError::ErrorReply(why))
        }
        opened => opened,
    }
}
