//! Errors of connections, in words for people.

use std::io;

use fred::error::Error as FredError;

/// What the error says. fred keeps the system's errors only as Rust shows them to programmers.
pub(super) fn said(error: &FredError) -> String {
    let details = error.details();
    system(details).unwrap_or_else(|| details.to_owned())
}

/// The words in `Os { code: 111, kind: …, message: "…" }` or `Custom { kind: …, error: "…" }`.
fn system(shown: &str) -> Option<String> {
    if let Some(rest) = shown.strip_prefix("Os { code: ") {
        let (code, _) = rest.split_once(',')?;
        return Some(io::Error::from_raw_os_error(code.parse().ok()?).to_string());
    }
    let (_, error) = shown.strip_prefix("Custom { kind: ")?.split_once(", error: ")?;
    Some(error.strip_suffix(" }")?.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use fred::error::ErrorKind;

    use super::*;

    #[test]
    fn the_systems_errors_are_told_in_its_words() {
        let refused = FredError::from(io::Error::from_raw_os_error(111));
        assert_eq!(said(&refused), "Connection refused (os error 111)");
        let unknown = FredError::from(io::Error::other("Name or service not known"));
        assert_eq!(said(&unknown), "Name or service not known");
        let short = FredError::from(io::Error::from(io::ErrorKind::UnexpectedEof));
        assert_eq!(said(&short), "Kind(UnexpectedEof)");
        let server = FredError::new(ErrorKind::Unknown, "OOM command not allowed");
        assert_eq!(said(&server), "OOM command not allowed");
    }
}
