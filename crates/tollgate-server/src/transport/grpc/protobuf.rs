//! The wire format of Protocol Buffers: the fields of a message are read without copying, and written to a buffer.
//!
//! Messages have a handful of known fields, so each is read and written by hand: no code generator, no protoc. prost would
//! decode text into owned strings first.

use std::borrow::Cow;

use thiserror::Error;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DecodeError {
    #[error("the message ends inside a field")]
    Truncated,
    #[error("a varint has more than 10 bytes")]
    LongVarint,
    #[error("a field has the number 0")]
    FieldNumber,
    #[error("wire type {0} is not supported")]
    WireType(u8),
    #[error("field {0} has another wire type than its definition")]
    UnexpectedType(u32),
    #[error("field {0} is not UTF-8 text")]
    NotText(u32),
}

/// One field of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field<'a> {
    pub number: u32,
    value: WireValue<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WireValue<'a> {
    Varint(u64),
    Fixed,
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    pub fn varint(&self) -> Result<u64, DecodeError> {
        match self.value {
            WireValue::Varint(value) => Ok(value),
            _ => Err(DecodeError::UnexpectedType(self.number)),
        }
    }

    /// A `uint32` or an enum: higher bits are cut off, as the specification says.
    pub fn varint32(&self) -> Result<u32, DecodeError> {
        self.varint().map(|value| value as u32)
    }

    pub fn bytes(&self) -> Result<&'a [u8], DecodeError> {
        match self.value {
            WireValue::Bytes(bytes) => Ok(bytes),
            _ => Err(DecodeError::UnexpectedType(self.number)),
        }
    }

    pub fn text(&self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| DecodeError::NotText(self.number))
    }

    /// Text that a client of the caller may have chosen: bytes that are not UTF-8 are replaced.
    pub fn text_lossy(&self) -> Result<Cow<'a, str>, DecodeError> {
        self.bytes().map(String::from_utf8_lossy)
    }

    pub fn message(&self) -> Result<Fields<'a>, DecodeError> {
        self.bytes().map(Fields::of)
    }
}

/// The fields of a message, in the order in which they were written.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    fn read(&mut self) -> Result<Field<'a>, DecodeError> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0);
        let number = number.ok_or(DecodeError::FieldNumber)?;
        let value = match (tag & 7) as u8 {
            0 => WireValue::Varint(self.varint()?),
            1 => self.take(8).map(|_| WireValue::Fixed)?,
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| DecodeError::Truncated)?;
                WireValue::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| WireValue::Fixed)?,
            other => return Err(DecodeError::WireType(other)),
        };
        Ok(Field { number, value })
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for (n, byte) in self.rest.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * n);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[n + 1..];
                return Ok(value);
            }
        }
        Err(if self.rest.len() < 10 { DecodeError::Truncated } else { DecodeError::LongVarint })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Appends fields to a buffer. Zero and empty values are left out, as in proto3.
pub trait WriteFields {
    fn put_varint(&mut self, number: u32, value: u64);
    /// Also if it is empty: for elements of a list and members of a oneof.
    fn put_bytes(&mut self, number: u32, value: &[u8]);
    fn put_text(&mut self, number: u32, value: &str);
    /// Also if it is zero: for members of a oneof.
    fn put_double(&mut self, number: u32, value: f64);
    fn put_message(&mut self, number: u32, write: impl FnOnce(&mut Self));
}

impl WriteFields for Vec<u8> {
    fn put_varint(&mut self, number: u32, value: u64) {
        if value != 0 {
            push_varint(self, u64::from(number) << 3);
            push_varint(self, value);
        }
    }

    fn put_bytes(&mut self, number: u32, value: &[u8]) {
        push_varint(self, u64::from(number) << 3 | 2);
        push_varint(self, value.len() as u64);
        self.extend_from_slice(value);
    }

    fn put_text(&mut self, number: u32, value: &str) {
        if !value.is_empty() {
            self.put_bytes(number, value.as_bytes());
        }
    }

    fn put_double(&mut self, number: u32, value: f64) {
        push_varint(self, u64::from(number) << 3 | 1);
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_message(&mut self, number: u32, write: impl FnOnce(&mut Self)) {
        push_varint(self, u64::from(number) << 3 | 2);
        let start = self.len();
        write(self);
        // The length precedes the message and is known after it.
        let end = self.len();
        push_varint(self, (end - start) as u64);
        let length_bytes = self.len() - end;
        self[start..].rotate_right(length_bytes);
    }
}

fn push_varint(buffer: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        buffer.push(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut buffer = Vec::new();
        buffer.put_varint(1, u64::MAX);
        buffer.put_text(2, "");
        buffer.put_message(3, |inner| {
            inner.put_text(1, &"x".repeat(300));
            inner.put_varint(16, 300);
        });
        let fields: Vec<_> = Fields::of(&buffer).collect::<Result<_, _>>().expect("valid");
        assert_eq!(fields.len(), 2, "an empty text is left out");
        assert_eq!((fields[0].number, fields[0].varint()), (1, Ok(u64::MAX)));
        let inner: Vec<_> = fields[1].message().expect("a message").collect::<Result<_, _>>().expect("valid");
        assert_eq!(inner[0].text().map(str::len), Ok(300));
        assert_eq!((inner[1].number, inner[1].varint32()), (16, Ok(300)));
        assert_eq!(fields[0].bytes(), Err(DecodeError::UnexpectedType(1)));
    }

    #[test]
    fn garbage_is_an_error_that_names_it() {
        for (bytes, error) in [
            (&[0x0a][..], DecodeError::Truncated),
            (&[0x0a, 5, 1], DecodeError::Truncated),
            (&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], DecodeError::Truncated),
            (&[0x09, 1, 2], DecodeError::Truncated),
            (&[0xff; 11], DecodeError::LongVarint),
            (&[0x00, 1], DecodeError::FieldNumber),
            (&[0x0b], DecodeError::WireType(3)),
        ] {
            let read: Result<Vec<_>, _> = Fields::of(bytes).collect();
            assert_eq!(read, Err(error), "{bytes:?}");
        }
        assert_eq!(
            Fields::of(&[0x0a, 1, 0xff]).next().expect("a field").expect("valid").text().err(),
            Some(DecodeError::NotText(1))
        );
    }
}
