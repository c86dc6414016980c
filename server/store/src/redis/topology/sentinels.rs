//! Asks sentinels for the primary.

use std::collections::HashMap;

use crate::redis::{
    Address, Reply, Stats,
    link::{Link, LinkError, LinkSettings, Password},
};

/// Connections to sentinels, of which each is asked in turn: one of them may be cut off together with a
/// primary that is no longer one.
#[derive(Default)]
pub(super) struct Sentinels {
    links: HashMap<Address, Link>,
    turn: usize,
}

impl Sentinels {
    pub(super) async fn primary(
        &mut self,
        addresses: &[Address],
        name: &str,
        settings: &LinkSettings,
        stats: &Stats,
    ) -> Option<(Address, u64)> {
        let first = self.turn;
        self.turn = self.turn.wrapping_add(1);
        for step in 0..addresses.len() {
            let address = addresses.get(first.wrapping_add(step) % addresses.len())?;
            match self.ask(address, name, settings).await {
                Ok(Some(found)) => return Some(found),
                Ok(None) => stats.unreachable(address, "knows no primary of that name"),
                Err(error) => {
                    self.links.remove(address);
                    stats.unreachable(address, &error.to_string());
                }
            }
        }
        None
    }

    async fn ask(
        &mut self,
        address: &Address,
        name: &str,
        settings: &LinkSettings,
    ) -> Result<Option<(Address, u64)>, LinkError> {
        if !self.links.contains_key(address) {
            self.links.insert(address.clone(), sentinel(address, settings).await?);
        }
        let Some(link) = self.links.get(address) else { return Ok(None) };
        let ask = async |what| link.ask(settings.connect_timeout, &["SENTINEL", what, name]).await;
        // While replicas are switched to a new primary, a sentinel still names the old one with the new epoch.
        let place = ask("GET-MASTER-ADDR-BY-NAME").await?;
        let [host, port] = place.elements() else { return Ok(None) };
        let fields = ask("MASTER").await?;
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

/// Connects to a sentinel. Many ask for no password where their servers do, and refuse one.
async fn sentinel(address: &Address, settings: &LinkSettings) -> Result<Link, LinkError> {
    // Sentinels have no databases.
    let settings = LinkSettings { database: 0, ..settings.clone() };
    match Link::open(address, &settings).await {
        Err(LinkError::Refused(why)) if ["AUTH", "WRONGPASS"].iter().any(|it| why.contains(it)) => {
            let open = LinkSettings { username: None, password: Password::None, ..settings };
            Link::open(address, &open).await.map_err(|_| LinkError::Refused(why))
        }
        opened => opened,
    }
}
