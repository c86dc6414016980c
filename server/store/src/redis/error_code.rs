//! The codes of Redis' error replies.
//!
//! RESP has one type for all errors, and Redis adds no number: by convention the first word of the text is a code,
//! which the protocol itself relies on (`MOVED`, `ASK`). Client libraries compare the same words. So this file is the
//! only one that distinguishes errors of Redis, by their text.

/// The code of an error reply, as far as the store distinguishes codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorCode {
    /// `MOVED slot host:port`: the slot is at another server.
    Moved,
    /// `ASK slot host:port`: the slot is moving, and the keys are already at another server.
    Ask,
    /// `TRYAGAIN`: the slot is moving, and the keys are at both servers.
    TryAgain,
    /// `NOSCRIPT`: the server does not have the script.
    NoScript,
    /// `NOPERM`: the ACL user may not run the command.
    NoPerm,
    /// Another code with which the server rejects a command, or a script at its first write, without running it.
    Rejected,
    /// `ERR`: any error of a command without a code of its own.
    Generic,
    /// Any other code. A script may have run in part.
    Other,
}

impl ErrorCode {
    /// The code of an error's text.
    pub(super) fn of(text: &str) -> Self {
        match first_word(text) {
            "MOVED" => Self::Moved,
            "ASK" => Self::Ask,
            "TRYAGAIN" => Self::TryAgain,
            "NOSCRIPT" => Self::NoScript,
            "NOPERM" => Self::NoPerm,
            CLUSTERDOWN | "OOM" | "READONLY" | "LOADING" | "BUSY" | "MISCONF" | "NOREPLICAS"
            | "MASTERDOWN" | "NOAUTH" | "WRONGPASS" | "CROSSSLOT" => Self::Rejected,
            "ERR" => Self::Generic,
            _ => Self::Other,
        }
    }

    /// Whether a script that got this error was not run.
    pub(super) const fn is_not_run(self) -> bool {
        match self {
            Self::Moved
            | Self::Ask
            | Self::TryAgain
            | Self::NoScript
            | Self::NoPerm
            | Self::Rejected => true,
            Self::Generic | Self::Other => false,
        }
    }
}

/// The first word of a text.
pub(super) fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

const CLUSTERDOWN: &str = "CLUSTERDOWN";

/// Whether an error, of Redis or of [the check of a connection](super::node::TopologyHandle::check_connection), says
/// that the cluster of the server is down.
pub(super) fn is_cluster_down(text: &str) -> bool {
    text.starts_with(CLUSTERDOWN)
}

/// Whether a server rejected a password. Redis has a code for a wrong password only: a server without a password
/// replies `ERR Client sent AUTH, but no password is set` or, from version 6 on, `ERR AUTH <password> called without
/// any password configured`.
pub(super) fn is_password_rejected(text: &str) -> bool {
    ["AUTH", "WRONGPASS"].iter().any(|it| text.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_word_of_an_error_is_its_code() {
        for (text, code, is_not_run) in [
            ("MOVED 3999 127.0.0.1:6381", ErrorCode::Moved, true),
            ("ASK 3999 127.0.0.1:6381", ErrorCode::Ask, true),
            ("TRYAGAIN Multiple keys request during rehashing of slot", ErrorCode::TryAgain, true),
            ("NOSCRIPT No matching script.", ErrorCode::NoScript, true),
            ("NOPERM this user has no permissions", ErrorCode::NoPerm, true),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorCode::Rejected, true),
            ("CLUSTERDOWN The cluster is down", ErrorCode::Rejected, true),
            ("ERR unknown command", ErrorCode::Generic, false),
            ("WRONGTYPE Operation against a key", ErrorCode::Other, false),
            ("MOVEDX", ErrorCode::Other, false),
            ("", ErrorCode::Other, false),
        ] {
            let found = ErrorCode::of(text);
            assert_eq!((found, found.is_not_run()), (code, is_not_run), "{text}");
        }
    }
}
