//! The token of callers, from a file that can be replaced while the server runs.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use subtle::ConstantTimeEq as _;
use thiserror::Error;
use tonic::{Request, Status, service::Interceptor};

use crate::{
    reloaded::{ReloadOutcome, Reloaded},
    secret::{self, SecretError},
};

/// Why a token cannot be read from a file.
#[derive(Debug, Error)]
pub enum TokenError {
    /// The file cannot be read, or its first line is too short.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The first line cannot be sent in a header.
    #[error("the first line of {} is not a token: only visible ASCII without spaces is allowed", .0.display())]
    NoToken(PathBuf),
}

/// The token in force. Clones share it.
#[derive(Clone)]
pub(crate) struct Token(Arc<TokenFile>);

struct TokenFile {
    path: PathBuf,
    value: Reloaded<Content, String>,
}

/// The token in the file, or the error of reading it.
type Content = Result<String, String>;

impl Token {
    /// Reads the first line of a file.
    ///
    /// # Errors
    /// The file has no token.
    pub(crate) fn load(path: &Path) -> Result<Self, TokenError> {
        let token = read(path)?;
        let value = Reloaded::new(Ok(token.clone()), token);
        Ok(Self(Arc::new(TokenFile { path: path.to_owned(), value })))
    }

    /// The file to watch for changes.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Reads the file again, and puts its token in force.
    ///
    /// # Errors
    /// The file has no token. The previous token stays in force, and the same error is not returned twice.
    pub(crate) fn reload(&self) -> Result<ReloadOutcome, TokenError> {
        let token = read(&self.0.path);
        let content: Content =
            token.as_ref().map(String::clone).map_err(|error| format!("{error:?}"));
        self.0.value.reload(content, false, |_, _| token)
    }

    /// Whether the file had no token when it was last read, so that a previous token is in force.
    pub(crate) fn is_rejected(&self) -> bool {
        self.0.value.is_rejected()
    }

    /// Whether this is the token in force, in constant time for a given length.
    fn matches(&self, candidate: &str) -> bool {
        candidate.as_bytes().ct_eq(self.0.value.load().as_bytes()).into()
    }
}

fn read(path: &Path) -> Result<String, TokenError> {
    let line = secret::first_line(path)?;
    let token = String::from_utf8(line).ok();
    let token = token.filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
    let token = token.ok_or_else(|| TokenError::NoToken(path.to_owned()))?;
    secret::check_length(token.as_bytes(), path)?;
    Ok(token)
}

/// Rejects callers without the token. Without a configured token it accepts all callers.
#[derive(Clone)]
pub(super) struct TokenInterceptor(pub(super) Option<Token>);

impl Interceptor for TokenInterceptor {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(token) = &self.0 else { return Ok(request) };
        let header = request.metadata().get("authorization").and_then(|it| it.to_str().ok());
        match header.and_then(|it| it.split_once(' ')) {
            Some((scheme, candidate))
                if scheme.eq_ignore_ascii_case("bearer") && token.matches(candidate) =>
            {
                Ok(request)
            }
            Some(_) => Err(Status::unauthenticated("wrong token")),
            None => Err(Status::unauthenticated(
                "a token is required: authorization: Bearer TOKEN (sluicectl --token-file)",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read(&file).map_err(|error| error.to_string())
        };
        assert_eq!(read("  0123456789abcdef\r\nmore").unwrap(), "0123456789abcdef");
        for short in ["", "\n0123456789abcdef", "0123456789abcde"] {
            assert!(read(short).unwrap_err().ends_with(" has less than 16 bytes"), "{short:?}");
        }
        for none in ["0123456789 abcdef", "0123456789abcdefé"] {
            assert!(read(none).unwrap_err().contains(" is not a token: "), "{none:?}");
        }
    }
}
