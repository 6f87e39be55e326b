//! Lists and dictionaries of structured fields (RFC 9651), as far as limits use them: items with parameters, no inner
//! lists. This subset is small, borrows from the field, and spares programs that embed the client a dependency (`sfv`).

use std::borrow::Cow;

/// An integer has at most 15 digits (RFC 9651, 3.3.1).
pub const MAX_DIGITS: usize = 15;
/// Parameters of one member; a field with more is not valid here.
const MAX_PARAMETERS: usize = 16;

/// One member: of a list, or with its key of a dictionary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member<'t> {
    pub key: Option<&'t str>,
    pub value: BareItem<'t>,
    parameters: Vec<(&'t str, BareItem<'t>)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BareItem<'t> {
    /// Not negative.
    Integer(u64),
    Text(Cow<'t, str>),
    Token(&'t str),
    /// A byte sequence, still in base64.
    Bytes(&'t str),
    /// A valid value of another type: a boolean, a decimal or a negative number.
    Other,
}

impl<'t> Member<'t> {
    fn parameter(&self, name: &str) -> Option<&BareItem<'t>> {
        // The last one counts (RFC 9651, 4.2.3.2).
        self.parameters.iter().rfind(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub fn integer(&self, name: &str) -> Option<u64> {
        if let Some(BareItem::Integer(number)) = self.parameter(name) { Some(*number) } else { None }
    }

    /// A string, or a token, which some servers send instead.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.parameter(name)? {
            BareItem::Text(text) => Some(text),
            BareItem::Token(token) => Some(token),
            _ => None,
        }
    }

    pub fn bytes(&self, name: &str) -> Option<&'t str> {
        if let Some(BareItem::Bytes(bytes)) = self.parameter(name) { Some(bytes) } else { None }
    }
}

/// Adds the members of a line to `members`, up to `max` in total; `None` if the line is not valid.
pub fn read_list<'t>(line: &'t str, max: usize, members: &mut Vec<Member<'t>>) -> Option<()> {
    let mut reader = Reader { rest: line };
    reader.skip_spaces();
    while !reader.rest.is_empty() {
        let member = reader.member()?;
        if members.len() < max {
            members.push(member);
        }
        reader.skip_spaces();
        if reader.rest.is_empty() {
            break;
        }
        reader.expect(',')?;
        reader.skip_spaces();
        if reader.rest.is_empty() {
            return None; // a trailing comma
        }
    }
    Some(())
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn member(&mut self) -> Option<Member<'t>> {
        let mut key = None;
        let mut value = self.bare_item()?;
        if let BareItem::Token(name) = value
            && self.rest.starts_with('=')
        {
            self.expect('=')?;
            key = Some(name);
            value = self.bare_item()?;
        }
        let mut parameters = Vec::new();
        while self.rest.starts_with(';') {
            self.expect(';')?;
            self.skip_spaces();
            let name = self.take_while(|byte| byte.is_ascii_lowercase() || is_key_byte(byte))?;
            let value = match self.rest.starts_with('=') {
                true => self.expect('=').and_then(|()| self.bare_item())?,
                false => BareItem::Other, // a boolean
            };
            if parameters.len() == MAX_PARAMETERS {
                return None;
            }
            parameters.push((name, value));
        }
        Some(Member { key, value, parameters })
    }

    fn bare_item(&mut self) -> Option<BareItem<'t>> {
        match self.rest.as_bytes().first()? {
            b'"' => self.text().map(BareItem::Text),
            b':' => {
                self.expect(':')?;
                let (bytes, rest) = self.rest.split_once(':')?;
                self.rest = rest;
                let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
                bytes.bytes().all(is_base64).then_some(BareItem::Bytes(bytes))
            }
            b'?' => {
                let rest = self.rest.strip_prefix("?0").or(self.rest.strip_prefix("?1"))?;
                self.rest = rest;
                Some(BareItem::Other)
            }
            b'-' | b'0'..=b'9' => self.number(),
            byte if byte.is_ascii_alphabetic() || *byte == b'*' => {
                self.take_while(is_token_byte).map(BareItem::Token)
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<BareItem<'t>> {
        let is_negative = self.rest.starts_with('-');
        self.rest = self.rest.strip_prefix('-').unwrap_or(self.rest);
        let digits = self.take_while(|byte| byte.is_ascii_digit())?;
        if digits.len() > MAX_DIGITS {
            return None;
        }
        if self.rest.starts_with('.') {
            self.expect('.')?;
            self.take_while(|byte| byte.is_ascii_digit())?;
            return Some(BareItem::Other);
        }
        let number = digits.parse().ok()?;
        Some(if is_negative { BareItem::Other } else { BareItem::Integer(number) })
    }

    /// A quoted string, with `\"` and `\\`.
    fn text(&mut self) -> Option<Cow<'t, str>> {
        self.expect('"')?;
        let mut unescaped: Option<String> = None;
        let mut bytes = self.rest.bytes().enumerate();
        let mut start = 0;
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'"' => {
                    let tail = &self.rest[start..at];
                    self.rest = &self.rest[at + 1..];
                    return Some(match unescaped {
                        Some(text) => Cow::Owned(text + tail),
                        None => Cow::Borrowed(tail),
                    });
                }
                b'\\' => {
                    let (escaped, _) = bytes.next().filter(|(_, byte)| matches!(byte, b'"' | b'\\'))?;
                    unescaped.get_or_insert_default().push_str(&self.rest[start..at]);
                    start = escaped;
                }
                0x20..=0x7e => {}
                _ => return None,
            }
        }
        None
    }

    /// One byte or more.
    fn take_while(&mut self, fits: impl Fn(u8) -> bool) -> Option<&'t str> {
        let end = self.rest.bytes().position(|byte| !fits(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        (!taken.is_empty()).then_some(taken)
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn expect(&mut self, letter: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(letter)?;
        Some(())
    }
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_digit() || b"_-.*".contains(&byte)
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}
