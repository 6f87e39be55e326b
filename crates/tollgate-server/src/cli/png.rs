//! A drawing as PNG: a palette of a few colours, compressed by runs. Text is drawn with letters of 5 by 7 dots, lower case
//! as upper case.
//!
//! The format: RFC 2083 for the file, RFC 1950 and 1951 for the compressed data, with the fixed Huffman codes. Nothing
//! else here compresses, and a drawing needs no more than runs of a byte, so no crate does it. Stored blocks would need no
//! codes, but the file would have a byte for each dot.

use crate::cli::svg::Color;

/// Dots for each unit of a drawing.
const SCALE: f64 = 2.0;

/// Colours as red, green and blue; the index is the value of a dot.
const PALETTE: [[u8; 3]; 6] = [
    [0xff, 0xff, 0xff],
    [0x22, 0x22, 0x22],
    [0x66, 0x66, 0x66],
    [0xdd, 0xdd, 0xdd],
    [0x1d, 0x6f, 0xd1],
    [0xd1, 0x49, 0x1d],
];
const TITLE: u8 = 1;
const LABEL: u8 = 2;
const RULE: u8 = 3;

pub struct Raster {
    width: usize,
    height: usize,
    dots: Vec<u8>,
}

impl Raster {
    pub fn new(width: u32, height: u32) -> Raster {
        let scaled = |length: u32| (f64::from(length) * SCALE) as usize;
        let [width, height] = [width, height].map(scaled);
        Raster { width, height, dots: vec![0; width * height] }
    }

    /// A filled rectangle; what is outside is left out.
    fn fill(&mut self, x: f64, y: f64, width: f64, height: f64, value: u8) {
        let bounds = |from: f64, length: f64, most: usize| {
            let [start, end] = [from, from + length].map(|edge| (edge * SCALE).round().max(0.0) as usize);
            start.min(most)..end.min(most)
        };
        let columns = bounds(x, width, self.width);
        for row in bounds(y, height, self.height) {
            self.dots[row * self.width..][columns.clone()].fill(value);
        }
    }

    pub fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, color: Color) {
        let value = if matches!(color, Color::Denied) { 5 } else { 4 };
        self.fill(x, y - height, width, height, value);
    }

    pub fn horizontal(&mut self, from: f64, to: f64, y: f64) {
        self.fill(from, y, to - from, 0.5, RULE);
    }

    /// A title; `y` is the line on which it stands.
    pub fn text(&mut self, x: f64, y: f64, text: &str) {
        self.write(x, y, text, 1.5, TITLE);
    }

    pub fn small(&mut self, x: f64, y: f64, text: &str) {
        self.write(x, y, text, 1.0, LABEL);
    }

    fn write(&mut self, x: f64, y: f64, text: &str, dot: f64, value: u8) {
        for (n, char) in text.chars().enumerate() {
            let left = x + n as f64 * 6.0 * dot;
            for (row, bits) in glyph(char).into_iter().enumerate() {
                for column in (0..5).filter(|column| bits & (0b10000 >> column) != 0) {
                    let top = y - (7 - row) as f64 * dot;
                    self.fill(left + f64::from(column) * dot, top, dot, dot, value);
                }
            }
        }
    }

    /// The bytes of the file.
    pub fn finish(&self) -> Vec<u8> {
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        let [width, height] = [self.width, self.height].map(|length| (length as u32).to_be_bytes());
        // 8 bits a dot, indices of a palette.
        chunk(&mut file, b"IHDR", &[&width[..], &height[..], &[8, 3, 0, 0, 0]].concat());
        chunk(&mut file, b"PLTE", &PALETTE.concat());
        let mut rows = Vec::with_capacity((self.width + 1) * self.height);
        let above = vec![0; self.width];
        for (n, row) in self.dots.chunks(self.width).enumerate() {
            let above = if n == 0 { &above[..] } else { &self.dots[(n - 1) * self.width..][..self.width] };
            rows.push(2); // the difference to the row above, which is mostly none
            rows.extend(row.iter().zip(above).map(|(dot, above)| dot.wrapping_sub(*above)));
        }
        chunk(&mut file, b"IDAT", &compress(&rows));
        chunk(&mut file, b"IEND", &[]);
        file
    }
}

fn chunk(file: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    let start = file.len();
    file.extend(kind);
    file.extend(data);
    let sum = crc32(&file[start..]);
    file.extend(sum.to_be_bytes());
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    !sum
}

fn adler32(bytes: &[u8]) -> u32 {
    let mut low = 1u32;
    let mut high = 0u32;
    for byte in bytes {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    high << 16 | low
}

/// Bits of compressed data, from the lowest bit of each byte on.
#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    free: u32,
}

impl BitWriter {
    /// The lowest bit first.
    fn bits(&mut self, value: u32, count: u32) {
        for bit in 0..count {
            if self.free == 0 {
                self.bytes.push(0);
                self.free = 8;
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((value >> bit & 1) as u8) << (8 - self.free);
            }
            self.free -= 1;
        }
    }

    /// A Huffman code: the highest bit first.
    fn code(&mut self, code: u32, count: u32) {
        self.bits(code.reverse_bits() >> (32 - count), count);
    }

    fn literal_or_length(&mut self, symbol: u32) {
        match symbol {
            0..=143 => self.code(0x30 + symbol, 8),
            144..=255 => self.code(0x190 + symbol - 144, 9),
            256..=279 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }
}

/// The shortest run of each length code from 257 on, and the bits that say how much longer it is.
const RUNS: [(usize, u32); 29] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
];

/// One block of literals and of runs of the byte before.
fn compress(data: &[u8]) -> Vec<u8> {
    const LONGEST_RUN: usize = 258;
    let mut out = BitWriter { bytes: vec![0x78, 0x01], free: 0 };
    out.bits(0b011, 3); // the last block, with fixed codes
    let mut at = 0;
    while at < data.len() {
        let byte = data[at];
        out.literal_or_length(byte.into());
        at += 1;
        let repeated = data[at..].iter().take(LONGEST_RUN).take_while(|next| **next == byte).count();
        let code = RUNS.partition_point(|(shortest, _)| *shortest <= repeated);
        if let Some((shortest, extra)) = code.checked_sub(1).map(|code| RUNS[code]) {
            out.literal_or_length(256 + code as u32);
            out.bits((repeated - shortest) as u32, extra);
            out.code(0, 5); // a distance of 1
            at += repeated;
        }
    }
    out.literal_or_length(256);
    out.bytes.extend(adler32(data).to_be_bytes());
    out.bytes
}

/// The rows of a letter, the highest of 5 bits on the left.
fn glyph(char: char) -> [u8; 7] {
    match char.to_ascii_uppercase() {
        ' ' => [0; 7],
        '0' => [14, 17, 19, 21, 25, 17, 14],
        '1' => [4, 12, 4, 4, 4, 4, 14],
        '2' => [14, 17, 1, 6, 8, 16, 31],
        '3' => [14, 17, 1, 6, 1, 17, 14],
        '4' => [2, 6, 10, 18, 31, 2, 2],
        '5' => [31, 16, 30, 1, 1, 17, 14],
        '6' => [6, 8, 16, 30, 17, 17, 14],
        '7' => [31, 1, 2, 4, 8, 8, 8],
        '8' => [14, 17, 17, 14, 17, 17, 14],
        '9' => [14, 17, 17, 15, 1, 2, 12],
        'A' => [4, 10, 17, 17, 31, 17, 17],
        'B' => [30, 17, 17, 30, 17, 17, 30],
        'C' => [14, 17, 16, 16, 16, 17, 14],
        'D' => [30, 17, 17, 17, 17, 17, 30],
        'E' => [31, 16, 16, 30, 16, 16, 31],
        'F' => [31, 16, 16, 30, 16, 16, 16],
        'G' => [14, 17, 16, 23, 17, 17, 15],
        'H' => [17, 17, 17, 31, 17, 17, 17],
        'I' => [14, 4, 4, 4, 4, 4, 14],
        'J' => [1, 1, 1, 1, 1, 17, 14],
        'K' => [17, 18, 20, 24, 20, 18, 17],
        'L' => [16, 16, 16, 16, 16, 16, 31],
        'M' => [17, 27, 21, 21, 17, 17, 17],
        'N' => [17, 25, 21, 21, 19, 17, 17],
        'O' => [14, 17, 17, 17, 17, 17, 14],
        'P' => [30, 17, 17, 30, 16, 16, 16],
        'Q' => [14, 17, 17, 17, 21, 18, 13],
        'R' => [30, 17, 17, 30, 20, 18, 17],
        'S' => [15, 16, 16, 14, 1, 1, 30],
        'T' => [31, 4, 4, 4, 4, 4, 4],
        'U' => [17, 17, 17, 17, 17, 17, 14],
        'V' => [17, 17, 17, 17, 17, 10, 4],
        'W' => [17, 17, 17, 21, 21, 27, 17],
        'X' => [17, 17, 10, 4, 10, 17, 17],
        'Y' => [17, 17, 10, 4, 4, 4, 4],
        'Z' => [31, 1, 2, 4, 8, 16, 31],
        '-' => [0, 0, 0, 14, 0, 0, 0],
        '+' => [0, 4, 4, 31, 4, 4, 0],
        '_' => [0, 0, 0, 0, 0, 0, 31],
        '.' => [0, 0, 0, 0, 0, 12, 12],
        ',' => [0, 0, 0, 0, 4, 4, 8],
        ':' => [0, 12, 12, 0, 12, 12, 0],
        '/' => [1, 1, 2, 4, 8, 16, 16],
        '%' => [25, 25, 2, 4, 8, 19, 19],
        '(' => [2, 4, 8, 8, 8, 4, 2],
        ')' => [8, 4, 2, 2, 2, 4, 8],
        '=' => [0, 0, 31, 0, 31, 0, 0],
        '#' => [10, 10, 31, 10, 31, 10, 10],
        _ => [31, 17, 17, 17, 17, 17, 31],
    }
}
