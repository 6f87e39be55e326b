//! Decimal numbers as text. The formatting of the standard library takes about ten times as many instructions, for
//! texts that every request needs: addresses and headers.

use std::net::Ipv4Addr;

/// Appends a number.
pub(crate) fn push_number(text: &mut String, mut number: u64) {
    let mut digits = [0; 20]; // u64::MAX has 20
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.push_str(ascii(&digits[start..]));
}

/// An IPv4 address as text.
pub(crate) fn ipv4_text(ip: Ipv4Addr) -> String {
    let mut text = [b'.'; "255.255.255.255".len()];
    let mut end = 0;
    for octet in ip.octets() {
        end += usize::from(end > 0); // the dot
        for (divisor, least) in [(100, 100), (10, 10), (1, 0)] {
            if octet >= least {
                text[end] = b'0' + octet / divisor % 10;
                end += 1;
            }
        }
    }
    ascii(&text[..end]).to_owned()
}

fn ascii(text: &[u8]) -> &str {
    std::str::from_utf8(text).expect("digits and dots are ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_standard_library_does() {
        for number in [0, 7, 10, 99, 100, 12_345, u64::from(u32::MAX), u64::MAX] {
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
