//! Commands as they are sent (RESP2), each in one allocation.

use bytes::{BufMut as _, Bytes, BytesMut};

/// The most bytes of a number as an argument: 20 digits, and the line with their count.
const NUMBER_BYTES: usize = 20 + 7;

/// Bytes of an argument in addition to its text: the line with its length, and the end of its line.
const FRAME_BYTES: usize = 10;

/// A command with its arguments.
pub(super) fn encode_command<'a>(arguments: impl IntoIterator<Item = &'a [u8]> + Clone) -> Bytes {
    let (mut count, mut bytes) = (0, 0);
    for argument in arguments.clone() {
        count += 1;
        bytes += argument.len();
    }
    let mut text = CommandWriter::new(count, bytes, 0);
    for argument in arguments {
        text.argument([argument]);
    }
    text.finish()
}

/// Writes a command argument by argument.
pub(super) struct CommandWriter(BytesMut);

impl CommandWriter {
    /// Begins a command of `arguments` arguments, including its name: `numbers` numbers, and texts of `text_bytes`
    /// bytes in total.
    pub(super) fn new(arguments: usize, text_bytes: usize, numbers: usize) -> Self {
        let texts = arguments.saturating_sub(numbers);
        let bytes = FRAME_BYTES * (1 + texts) + text_bytes + numbers * NUMBER_BYTES;
        let mut writer = Self(BytesMut::with_capacity(bytes));
        writer.line(b'*', arguments);
        writer
    }

    /// Appends an argument, the concatenation of these parts.
    pub(super) fn argument<const N: usize>(&mut self, parts: [&[u8]; N]) {
        self.line(b'$', parts.iter().map(|part| part.len()).sum());
        parts.iter().for_each(|part| self.0.put_slice(part));
        self.0.put_slice(b"\r\n");
    }

    /// Appends a number.
    pub(super) fn number(&mut self, number: u64) {
        self.argument([itoa::Buffer::new().format(number).as_bytes()]);
    }

    pub(super) fn finish(self) -> Bytes {
        self.0.freeze()
    }

    fn line(&mut self, kind: u8, number: usize) {
        self.0.put_u8(kind);
        match u8::try_from(number) {
            Ok(digit @ ..=9) => self.0.put_u8(b'0' + digit),
            _ => self.0.put_slice(itoa::Buffer::new().format(number).as_bytes()),
        }
        self.0.put_slice(b"\r\n");
    }
}

/// The arguments of a command that a [`CommandWriter`] wrote, including its name.
pub(super) fn parse_arguments(command: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = line(command).map_or(&[][..], |(_, rest)| rest);
    std::iter::from_fn(move || {
        let (length, after) = line(rest)?;
        let (argument, after) = after.split_at_checked(length)?;
        rest = after.strip_prefix(b"\r\n")?;
        Some(argument)
    })
}

/// The number in the first line, and the text after that line.
fn line(text: &[u8]) -> Option<(usize, &[u8])> {
    let end = memchr::memchr(b'\r', text)?;
    let number = std::str::from_utf8(text.get(1..end)?).ok()?.parse().ok()?;
    Some((number, text.get(end + 2..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_written_as_redis_reads_them() {
        let long = [b'x'; 300];
        let written = encode_command([b"SET".as_slice(), b"", b"a\r\nb", &long]);
        let expected =
            [b"*4\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n$300\r\n", &long[..], b"\r\n"];
        assert_eq!(written, expected.concat());
        let read: Vec<_> = parse_arguments(&written).collect();
        assert_eq!(read, [b"SET".as_slice(), b"", b"a\r\nb", &long]);

        let mut writer = CommandWriter::new(3, 7, 1);
        writer.argument([b"GE".as_slice(), b"T"]);
        writer.argument([b"key".as_slice(), b"1"]);
        writer.number(u64::MAX);
        let room = writer.0.capacity();
        let written = writer.finish();
        assert_eq!(
            written,
            b"*3\r\n$3\r\nGET\r\n$4\r\nkey1\r\n$20\r\n18446744073709551615\r\n"[..]
        );
        assert!(written.len() <= 2 * room);
    }
}
