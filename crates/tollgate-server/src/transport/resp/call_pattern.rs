//! A command as it was sent, apart from its key. Clients usually send the same command again with another key, and such
//! a command need not be parsed.

use super::frame::{Args, short_number};

/// Longer commands have no pattern.
const MAX_BYTES: usize = 160;

#[derive(Default)]
pub struct CallPattern {
    bytes: Vec<u8>,
    /// Length of the part from the start of the command to the `$` of its key. The rest is from the end of the key to
    /// the end of the command. Zero if there is no pattern.
    head_bytes: usize,
}

impl CallPattern {
    /// Takes over the pattern of an array with a key as the first argument after the name; other commands have none.
    pub fn replace(&mut self, args: &Args<'_, '_>) {
        self.bytes.clear();
        self.head_bytes = 0;
        if let Some((head, tail)) = args.around(1)
            && head.len() + tail.len() <= MAX_BYTES
        {
            self.bytes.extend_from_slice(head);
            self.bytes.extend_from_slice(tail);
            self.head_bytes = head.len();
        }
    }

    /// The key of the command that `input` begins with, and the length of the command, if it is complete and differs
    /// in nothing but a key of at most 99 bytes.
    #[inline]
    pub fn key_of<'a>(&self, input: &'a [u8]) -> Option<(&'a [u8], usize)> {
        let (head, tail) = self.bytes.split_at(self.head_bytes);
        let rest = input.strip_prefix(head).filter(|_| !head.is_empty())?;
        let (length, taken) = short_number(rest)?;
        let (key, rest) = rest[taken..].split_at_checked(length)?;
        rest.starts_with(tail).then_some((key, head.len() + taken + length + tail.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Parser;
    use super::*;

    const CALL: &[u8] = b"*3\r\n$3\r\nCLX\r\n$3\r\nann\r\n$2\r\n10\r\n";

    fn pattern(call: &[u8]) -> CallPattern {
        let mut parser = Parser::default();
        assert_eq!(parser.parse(call), Ok(Some(call.len())));
        let mut pattern = CallPattern::default();
        pattern.replace(&parser.inline_args().unwrap_or_else(|| parser.args(call)));
        pattern
    }

    #[test]
    fn a_command_with_another_key_is_recognised_once_it_is_complete() {
        let pattern = pattern(CALL);
        let other = b"*3\r\n$3\r\nCLX\r\n$11\r\nbob\r\n$2\r\n10\r\n$2\r\n10\r\n*3";
        let length = other.len() - 2;
        assert_eq!(pattern.key_of(other), Some((&b"bob\r\n$2\r\n10"[..], length)));
        for cut in 0..length {
            assert_eq!(pattern.key_of(&other[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn a_command_that_differs_in_anything_else_is_not() {
        let pattern = pattern(CALL);
        for other in [
            "*3\r\n$3\r\nclx\r\n$3\r\nann\r\n$2\r\n10\r\n",
            "*3\r\n$3\r\nCLX\r\n$3\r\nann\r\n$2\r\n11\r\n",
            "*4\r\n$3\r\nCLX\r\n$3\r\nann\r\n$2\r\n10\r\n",
            "*3\r\n$3\r\nCLX\r\n$03\r\nann\r\n$2\r\n10\r\n",
            "*3\r\n$3\r\nCLX\r\n$-1\r\nann\r\n$2\r\n10\r\n",
            "*3\r\n$3\r\nCLX\r\n$4\r\nann\r\n$2\r\n10\r\n",
            "CLX ann 10\r\n",
        ] {
            assert_eq!(pattern.key_of(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn inline_commands_and_long_ones_have_no_pattern() {
        let long = format!("*3\r\n$3\r\nCLX\r\n$3\r\nann\r\n$200\r\n{}\r\n", "x".repeat(200));
        for call in ["CLX ann 10\r\n", "*1\r\n$3\r\nCLX\r\n", &long] {
            assert_eq!(pattern(call.as_bytes()).key_of(call.as_bytes()), None, "{call}");
        }
    }
}
