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
    text.extend(digits[start..].iter().map(|digit| char::from(*digit)));
}

/// An IPv4 address as text.
pub(crate) fn ipv4_text(ip: Ipv4Addr) -> String {
    let [first, rest @ ..] = ip.octets();
    let mut text = String::with_capacity("255.255.255.255".len());
    push_octet(&mut text, first);
    for octet in rest {
        text.push('.');
        push_octet(&mut text, octet);
    }
    text
}

fn push_octet(text: &mut String, octet: u8) {
    if octet >= 100 {
        text.push(char::from(b'0' + octet / 100));
    }
    if octet >= 10 {
        text.push(char::from(b'0' + octet / 10 % 10));
    }
    text.push(char::from(b'0' + octet % 10));
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
