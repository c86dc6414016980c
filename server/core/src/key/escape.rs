//! Escaping of bytes that could be taken for syntax of a counter key.

use smallvec::SmallVec;

/// The most bytes of a value, of a hash tag, and of the text after the hash tag. A digest replaces a longer one.
pub const KEY_PART_BYTES_MAX: usize = 256;

/// The most bytes of a counter key.
pub const KEY_BYTES_MAX: usize = 2 * KEY_PART_BYTES_MAX + 32;

/// The most bytes that [`escape`] passes on in one piece, before escaping.
const PIECE_MAX: usize = 64;

/// Escapes bytes and passes them to `put`, in pieces.
#[cold]
pub(super) fn escape(bytes: &[u8], mut put: impl FnMut(&[u8])) {
    let plain = |byte: &u8| PLAIN.get(usize::from(*byte)) == Some(&true);
    for piece in bytes.chunks(PIECE_MAX) {
        if piece.iter().all(plain) {
            put(piece);
            continue;
        }
        let mut text = SmallVec::<[u8; 3 * PIECE_MAX]>::new();
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

/// Whether a byte needs no escaping: printable ASCII other than the syntax of keys.
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

/// [`is_plain`] of every byte. For single bytes a lookup is faster; blocks of bytes are faster without one.
#[expect(clippy::indexing_slicing, reason = "evaluated at compile time, and a byte is below 256")]
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = u8::MAX;
    while byte > 0 {
        plain[byte as usize] = is_plain(byte);
        byte -= 1;
    }
    plain
};

/// The hex digit of a number from 0 to 15.
pub(super) const fn hex(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 }
}
