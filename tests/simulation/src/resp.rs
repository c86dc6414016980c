//! The server side of the Redis protocol (RESP2).

use sluicegate_store::redis::{Call, Reply};

/// A script call as Redis reads it.
#[derive(Debug)]
pub struct ScriptCall {
    words: Vec<Vec<u8>>,
    keys: usize,
}

impl ScriptCall {
    /// Words in front of the keys: the command, the digest of the script and the number of keys.
    const HEAD: usize = 3;

    /// Reads the command of a call.
    ///
    /// # Panics
    /// It is not a script call.
    #[must_use]
    pub fn of(call: &Call) -> Self {
        let words = take_command(&mut call.command().to_vec()).unwrap();
        let keys = std::str::from_utf8(&words[Self::HEAD - 1]).unwrap().parse().unwrap();
        Self { words, keys }
    }

    /// The command and its arguments.
    #[must_use]
    pub fn words(&self) -> Vec<&[u8]> {
        self.words.iter().map(Vec::as_slice).collect()
    }

    /// The names of the counters, each once.
    #[must_use]
    pub fn keys(&self) -> Vec<&[u8]> {
        self.words().drain(Self::HEAD..).take(self.keys).collect()
    }

    /// The arguments after the keys.
    #[must_use]
    pub fn args(&self) -> Vec<&[u8]> {
        self.words().split_off(Self::HEAD + self.keys)
    }
}

/// Removes the first complete command from the received bytes; `None` if there is none.
pub(crate) fn take_command(input: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut rest = input.as_slice();
    let count = number(&mut rest, b'*')?;
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(&mut rest, b'$')?;
        arguments.push(rest.get(..length)?.to_vec());
        rest = rest.get(length + 2..)?;
    }
    let length = input.len() - rest.len();
    input.drain(..length);
    Some(arguments)
}

/// Parses a line with a number after `kind`; `None` if it is incomplete.
fn number(rest: &mut &[u8], kind: u8) -> Option<usize> {
    let end = rest.windows(2).position(|it| it == b"\r\n")?;
    assert_eq!(rest[0], kind, "a command");
    let number = std::str::from_utf8(&rest[1..end]).unwrap().parse().unwrap();
    *rest = &rest[end + 2..];
    Some(number)
}

/// Encodes a reply.
pub(crate) fn write(reply: &Reply, output: &mut Vec<u8>) {
    match reply {
        Reply::Nil => output.extend_from_slice(b"$-1\r\n"),
        Reply::Integer(number) => output.extend(format!(":{number}\r\n").into_bytes()),
        Reply::Text(text) => {
            output.extend(format!("${}\r\n", text.len()).into_bytes());
            output.extend_from_slice(text);
            output.extend_from_slice(b"\r\n");
        }
        Reply::Error(text) => output.extend(format!("-{text}\r\n").into_bytes()),
        Reply::Array(elements) => {
            output.extend(format!("*{}\r\n", elements.len()).into_bytes());
            elements.iter().for_each(|it| write(it, output));
        }
    }
}
