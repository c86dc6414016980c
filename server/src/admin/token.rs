//! The token that callers show, from a file that can be replaced while the server runs.

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use tonic::{Request, Status, service::Interceptor};

use crate::secret::{self, SECRET_MIN};

/// Why a file holds no token.
#[derive(Debug, Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("cannot read the token in {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The first line cannot stand in a header.
    #[error("the first line of {path} is no token: visible ASCII without spaces")]
    NoToken {
        /// The file.
        path: PathBuf,
    },
    /// The first line is too short.
    #[error("the first line of {path} has less than {SECRET_MIN} bytes")]
    TooShort {
        /// The file.
        path: PathBuf,
    },
}

/// The token in force. Clones share it.
#[derive(Clone)]
pub(crate) struct Token(Arc<Shared>);

struct Shared {
    path: PathBuf,
    value: ArcSwap<String>,
    /// Why the file was rejected when it was last read, so that it is told once.
    rejected: ArcSwapOption<String>,
}

impl Token {
    /// Reads the first line of a file.
    ///
    /// # Errors
    /// There is no token in it.
    pub(crate) fn load(path: &Path) -> Result<Self, TokenError> {
        let value = ArcSwap::from_pointee(read(path)?);
        let rejected = ArcSwapOption::empty();
        Ok(Self(Arc::new(Shared { path: path.to_owned(), value, rejected })))
    }

    /// Where it stands.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Reads the file again, and puts its token in force. Returns whether it is another one.
    ///
    /// # Errors
    /// There is no token in it. The one in force stays so, and the same trouble is not told twice.
    pub(crate) fn reload(&self) -> Result<bool, TokenError> {
        let value = match read(&self.0.path) {
            Ok(value) => value,
            Err(error) => {
                let why = format!("{error:?}");
                let before = self.0.rejected.swap(Some(Arc::new(why.clone())));
                return if before.as_deref() == Some(&why) { Ok(false) } else { Err(error) };
            }
        };
        self.0.rejected.store(None);
        if value == **self.0.value.load() {
            return Ok(false);
        }
        self.0.value.store(Arc::new(value));
        Ok(true)
    }

    /// Whether the file is of no use as it is now, so that an older token is in force.
    pub(crate) fn is_rejected(&self) -> bool {
        self.0.rejected.load().is_some()
    }

    /// Whether this is the token in force. How long that takes tells nothing but its length.
    fn is(&self, shown: &str) -> bool {
        shown.as_bytes().ct_eq(self.0.value.load().as_bytes()).into()
    }
}

fn read(path: &Path) -> Result<String, TokenError> {
    let text = || {
        let mut text = String::new();
        secret::open(path)?.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = text().map_err(|source| TokenError::Unreadable { path: path.to_owned(), source })?;
    let token = text.lines().next().unwrap_or_default().trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(TokenError::NoToken { path: path.to_owned() });
    }
    if token.len() < SECRET_MIN {
        return Err(TokenError::TooShort { path: path.to_owned() });
    }
    Ok(token.to_owned())
}

/// Lets in who shows the token, or everybody where there is none.
#[derive(Clone)]
pub(super) struct Gate(pub(super) Option<Token>);

impl Interceptor for Gate {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(token) = &self.0 else { return Ok(request) };
        let shown = request.metadata().get("authorization").and_then(|it| it.to_str().ok());
        let shown = shown.and_then(|it| it.split_once(' '));
        match shown {
            Some((scheme, shown)) if scheme.eq_ignore_ascii_case("bearer") && token.is(shown) => {
                Ok(request)
            }
            Some(_) => Err(Status::unauthenticated("this is not the token")),
            None => Err(Status::unauthenticated(
                "a token is asked for: authorization: Bearer TOKEN (sluicectl --token-file)",
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
            assert!(read(none).unwrap_err().contains(" is no token: "), "{none:?}");
        }
    }
}
