//! Escaping of bytes in counter keys that could be taken for syntax.

use smallvec::SmallVec;

/// The longest tag, and the longest rest, before a digest replaces it.
pub const PART_MAX: usize = 256;

/// The longest counter key, in bytes.
pub const KEY_MAX: usize = 2 * PART_MAX + 32;

/// The most bytes that are escaped in one step.
const ESCAPED_AT_ONCE: usize = 64;

/// Passes the escaped bytes to `put`, in pieces.
#[cold]
pub(super) fn escape(bytes: &[u8], mut put: impl FnMut(&[u8])) {
    let plain = |byte: &u8| PLAIN.get(usize::from(*byte)) == Some(&true);
    for piece in bytes.chunks(ESCAPED_AT_ONCE) {
        if piece.iter().all(plain) {
            put(piece);
            continue;
        }
        let mut text = SmallVec::<[u8; 3 * ESCAPED_AT_ONCE]>::new();
        for &byte in piece {
            if plain(&byte) {
                text.push(byte);
            } else {
                text.extend([b'%', hex(byte >> 4), hex(byte & 15)]);
            }
        }
        put(&text);
    }
}

/// Whether a byte needs no escaping.
pub(super) const fn is_plain(byte: u8) -> bool {
    // `&` and `|` rather than `&&` and `||`, to avoid branches.
    let is_syntax = (byte == b'{')
        | (byte == b'}')
        | (byte == b':')
        | (byte == b'=')
        | (byte == b'%')
        | (byte == b'*');
    (byte > b' ') & (byte <= b'~') & !is_syntax
}

/// [`is_plain`] of every byte: for a single byte, a lookup is faster.
#[expect(clippy::indexing_slicing, reason = "worked out by the compiler, and a byte is below 256")]
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = u8::MAX;
    while byte > 0 {
        plain[byte as usize] = is_plain(byte);
        byte -= 1;
    }
    plain
};

pub(super) const fn hex(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
}
