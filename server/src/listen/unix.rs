//! Unix sockets, and their files, which remain after the server ends unless it removes them.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

/// The file of a socket. Dropping this removes the file.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Device and inode.
type Identity = (u64, u64);

/// Listens on `path`. Replaces a socket file on which no server listens any more.
///
/// # Errors
/// A server listens on `path`, another kind of file exists there, or the path cannot be bound.
pub(super) async fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path).await?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    Ok((listener, file))
}

async fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something other than a socket is there",
        ));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // Other errors can come from a live server that is too busy to accept, so its file is not removed.
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")),
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have replaced the file.
        if identity(&self.path).ok() == Some(self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "socket file not removed");
        }
    }
}
