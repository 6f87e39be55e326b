//! Decimal numbers as text. The formatting of the standard library takes about ten times as many instructions, for
//! texts that every request needs: addresses and headers.

use std::net::Ipv4Addr;

/// Appends a number.
pub(crate) fn push_number(text: &mut String, mut number: u64) {
    let mut digits = [0; 20]; // u64::MAX has 20
    let mut start = digits.len();
    // Two digits at a time.
    while number >= 100 {
        start -= 2;
        digits[start..start + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    if number >= 10 {
        start -= 2;
        digits[start..start + 2].copy_from_slice(&PAIRS[number as usize]);
    } else {
        start -= 1;
        digits[start] = b'0' + number as u8;
    }
    text.push_str(ascii(&digits[start..]));
}

/// An IPv4 address as text.
pub(crate) fn ipv4_text(ip: Ipv4Addr) -> String {
    ascii(Ipv4Text::default().write(ip)).to_owned()
}

/// Room for an IPv4 address as text: each octet with a dot after it.
#[derive(Default)]
pub(crate) struct Ipv4Text([u8; 16]);

impl Ipv4Text {
    /// Writes an address; returns its text, which is ASCII.
    #[inline]
    pub(crate) fn write(&mut self, ip: Ipv4Addr) -> &[u8] {
        let mut end = 0;
        for octet in ip.octets() {
            // Four bytes at once, of which the next octet overwrites those after the dot.
            self.0[end..end + 4].copy_from_slice(&OCTETS[usize::from(octet)]);
            end += 2 + usize::from(octet >= 10) + usize::from(octet >= 100);
        }
        &self.0[..end - 1]
    }
}

/// The numbers below a hundred in two digits each.
static PAIRS: [[u8; 2]; 100] = pairs();

const fn pairs() -> [[u8; 2]; 100] {
    let mut pairs = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
}

/// Each octet in decimal digits, with a dot after them.
static OCTETS: [[u8; 4]; 256] = octets();

const fn octets() -> [[u8; 4]; 256] {
    let mut octets = [[b'.'; 4]; 256];
    let mut octet = 0;
    while octet < 256 {
        let text = &mut octets[octet];
        let mut end = 0;
        if octet >= 100 {
            text[end] = b'0' + (octet / 100) as u8;
            end += 1;
        }
        if octet >= 10 {
            text[end] = b'0' + (octet / 10 % 10) as u8;
            end += 1;
        }
        text[end] = b'0' + (octet % 10) as u8;
        octet += 1;
    }
    octets
}

fn ascii(text: &[u8]) -> &str {
    std::str::from_utf8(text).expect("digits and dots are ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_standard_library_does() {
        for number in [0, 7, 10, 99, 100, 101, 999, 1000, 12_345, u64::from(u32::MAX), u64::MAX] {
            let mut text = String::from("t=");
            push_number(&mut text, number);
            assert_eq!(text, format!("t={number}"));
        }
    }

    #[test]
    fn addresses_are_written_as_the_standard_library_does() {
        for octet in 0..=255 {
            let ip = Ipv4Addr::new(octet, 255 - octet, octet / 3, 0);
            assert_eq!(ipv4_text(ip), ip.to_string());
        }
    }
}
