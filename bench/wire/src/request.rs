//! The requests that are sent, with a key of seven digits that changes, and how their replies are counted.

/// Distinct keys.
pub const KEYS: u64 = 1_000_000;
const DIGITS: usize = 7;
const PLACEHOLDER: &str = "0000000";

#[derive(Clone)]
pub struct Request {
    bytes: Vec<u8>,
    /// Where the digits of the key are, if it has one.
    key_at: Option<usize>,
    pub replies: ReplyFormat,
}

#[derive(Clone, Copy)]
pub enum ReplyFormat {
    /// Each reply has this many lines.
    Lines(usize),
    Http,
}

impl Request {
    /// A command of the Redis protocol; `0000000` in it is the key's number.
    pub fn resp(command: &str, lines: usize) -> Request {
        let words: Vec<_> = command.split(' ').map(str::to_owned).collect();
        Request::resp_words(&words, lines)
    }

    /// As [`resp`](Self::resp), with words that may have spaces.
    pub fn resp_words(words: &[String], lines: usize) -> Request {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        Request::new(bytes, ReplyFormat::Lines(lines))
    }

    pub fn post(path: &str, body: &str) -> Request {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        Request::new(head + body, ReplyFormat::Http)
    }

    pub fn get(path: &str) -> Request {
        Request::new(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"), ReplyFormat::Http)
    }

    fn new(text: String, replies: ReplyFormat) -> Request {
        Request { key_at: text.find(PLACEHOLDER), bytes: text.into_bytes(), replies }
    }

    /// A buffer with several requests, for [`set_keys`](Self::set_keys).
    pub fn repeated(&self, times: usize) -> Vec<u8> {
        self.bytes.repeat(times)
    }

    /// Gives each request of the buffer another key.
    pub fn set_keys(&self, buffer: &mut [u8], mut next_key: impl FnMut() -> u64) {
        let Some(key_at) = self.key_at else { return };
        for request in buffer.chunks_exact_mut(self.bytes.len()) {
            let mut key = next_key();
            for digit in request[key_at..key_at + DIGITS].iter_mut().rev() {
                *digit = b'0' + (key % 10) as u8;
                key /= 10;
            }
        }
    }
}
