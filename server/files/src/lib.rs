//! Opens and reads files in folders that other users may write to: limits files, certificates, secrets.
//!
//! If such a file is replaced by a link to `/dev/zero`, by a FIFO or by a device, opening it neither blocks nor fills
//! memory.

use std::{
    fs::{self, File, FileType},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

/// The most bytes of a PEM file: a certificate, a chain of certificates or a key.
pub const PEM_BYTES_MAX: u64 = 1 << 20;

/// The most bytes of a file whose first line is a secret.
pub const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Opens a regular file for reading. Follows links. Does not block, unless the file system itself does not respond.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before opening, because opening alone has effects on some devices.
    require_regular(fs::metadata(path)?.file_type())?;
    // The file may have been replaced since. Without the flags, opening a FIFO blocks until a process writes to it, and
    // opening a terminal can make it the controlling terminal.
    let file =
        File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    require_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a regular file of at most `bytes_max` bytes.
///
/// # Errors
/// As for [`open`], or the file is larger than `bytes_max`. Both its size and the bytes read are compared, because
/// files such as those in `/proc` have the size 0.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let too_large = || {
        let why = format!("larger than {bytes_max} bytes");
        Err(io::Error::new(io::ErrorKind::FileTooLarge, why))
    };
    let file = open(path)?;
    if file.metadata()?.len() > bytes_max {
        return too_large();
    }
    let mut bytes = Vec::new();
    let read = file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if read as u64 > bytes_max { too_large() } else { Ok(bytes) }
}

/// Reads the first line of a file of at most [`SECRET_BYTES_MAX`] bytes, such as a password or a token, without white
/// space around it.
///
/// # Errors
/// As for [`read`].
pub fn first_line(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read(path, SECRET_BYTES_MAX)?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(line.trim_ascii().to_vec())
}

fn require_regular(kind: FileType) -> io::Result<()> {
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_char_device() => "a character device",
        _ if kind.is_block_device() => "a block device",
        _ => "no file",
    };
    Err(io::Error::other(format!("{what}, and not a regular file")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    fn error(path: &Path) -> String {
        read(path, 10).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "0123456789").unwrap();
        symlink("file", path("link")).unwrap();
        assert_eq!(read(&path("link"), 10).unwrap(), b"0123456789");
        assert_eq!(read(&path("file"), 9).unwrap_err().to_string(), "larger than 9 bytes");

        let _socket = UnixListener::bind(path("socket")).unwrap();
        symlink("/dev/zero", path("zero")).unwrap();
        assert_eq!(error(&path("socket")), "a socket, and not a regular file");
        assert_eq!(error(&path("zero")), "a character device, and not a regular file");
        assert_eq!(error(folder.path()), "a folder, and not a regular file");
        assert_eq!(error(&path("none")), "No such file or directory (os error 2)");
    }

    #[test]
    fn files_without_a_size_are_bounded_too() {
        assert_eq!(fs::metadata("/proc/self/status").unwrap().len(), 0);
        assert_eq!(error(Path::new("/proc/self/status")), "larger than 10 bytes");
    }
}
