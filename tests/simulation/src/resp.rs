//! The protocol of Redis (RESP2), as a server speaks it.

use sluicegate_store::redis::Reply;

/// Takes the first whole command from the bytes that have arrived.
pub(crate) fn take_command(input: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut rest = input.as_slice();
    let count = number(&mut rest, b'*')?;
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(&mut rest, b'$')?;
        arguments.push(rest.get(..length)?.to_vec());
        rest = rest.get(length + 2..)?;
    }
    let taken = input.len() - rest.len();
    input.drain(..taken);
    Some(arguments)
}

fn number(rest: &mut &[u8], kind: u8) -> Option<usize> {
    let end = rest.windows(2).position(|it| it == b"\r\n")?;
    assert_eq!(rest[0], kind, "a command");
    let number = std::str::from_utf8(&rest[1..end]).unwrap().parse().unwrap();
    *rest = &rest[end + 2..];
    Some(number)
}

/// Writes a reply.
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
