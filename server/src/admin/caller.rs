//! The caller of an admin call, for the audit log.

use std::fmt;

use tonic::Request;

use crate::listen::{Peer, PeerProcess};

/// The caller: its address or process, and the name in its certificate.
#[derive(Clone, Debug)]
pub(super) struct Caller(Peer);

impl Caller {
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        Self(request.extensions().get::<Peer>().cloned().unwrap_or_default())
    }

    /// The first name in the caller's certificate, if it has sent one.
    pub(super) fn certificate(&self) -> Option<&str> {
        self.0.certificate_names.first().map(AsRef::as_ref)
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.address, &self.0.process) {
            (Some(address), _) => address.fmt(f),
            (None, Some(PeerProcess { user, id: Some(id) })) => write!(f, "uid {user} pid {id}"),
            (None, Some(PeerProcess { user, id: None })) => write!(f, "uid {user}"),
            (None, None) => f.write_str("unknown"),
        }
    }
}
