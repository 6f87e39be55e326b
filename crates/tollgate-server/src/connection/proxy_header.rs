//! The PROXY protocol, versions 1 and 2: a load balancer writes the client's address before the client's first byte.
//!
//! The header is read to its last byte and no further. Extensions of version 2 are skipped.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Longest line of version 1, with its end (section 2.1).
const MAX_LINE_BYTES: usize = 107;
/// Version 2 allows 65,535 bytes after the fixed part; addresses and extensions of load balancers are far shorter.
const MAX_V2_BYTES: usize = 2_048;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const V1_START: &[u8] = b"PROXY ";

#[derive(Debug, thiserror::Error)]
pub enum ProxyHeaderError {
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    #[error("a PROXY header is invalid: {0}")]
    Invalid(&'static str),
    #[error("{0}")]
    Io(#[from] io::Error),
}

use ProxyHeaderError::Invalid;

/// Reads the header; returns the client's address, or `None` if the load balancer speaks for itself (a health check).
pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    // Both versions are longer than the signature.
    let mut start = [0; SIGNATURE.len()];
    stream.read_exact(&mut start).await?;
    if start == *SIGNATURE {
        return read_v2(stream).await;
    }
    if !start.starts_with(V1_START) {
        return Err(ProxyHeaderError::Missing);
    }
    let mut line = [0; MAX_LINE_BYTES];
    line[..start.len()].copy_from_slice(&start);
    let mut length = start.len();
    while !line[..length].ends_with(b"\r\n") {
        if length == MAX_LINE_BYTES {
            return Err(Invalid("the line is too long"));
        }
        line[length] = stream.read_u8().await?;
        length += 1;
    }
    parse_line(&line[..length - 2])
}

/// `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443`, without its end.
fn parse_line(line: &[u8]) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    let line = std::str::from_utf8(line).map_err(|_| Invalid("the line is not ASCII"))?;
    let mut words = line.split(' ').skip(1);
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        return Ok(None);
    }
    let mut word = || words.next().ok_or(Invalid("an address or port is missing"));
    let source = word()?;
    let destination = word()?;
    let source_port = word()?;
    let destination_port = word()?;
    if words.next().is_some() {
        return Err(Invalid("the line has more than its addresses and ports"));
    }
    let address = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().map(IpAddr::from).map_err(|_| Invalid("not an IPv4 address")),
        "TCP6" => text.parse::<Ipv6Addr>().map(IpAddr::from).map_err(|_| Invalid("not an IPv6 address")),
        _ => Err(Invalid("the protocol is not TCP4, TCP6 or UNKNOWN")),
    };
    let port = |text: &str| text.parse::<u16>().map_err(|_| Invalid("not a port"));
    address(destination)?;
    port(destination_port)?;
    Ok(Some(SocketAddr::new(address(source)?, port(source_port)?)))
}

async fn read_v2<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    let mut fixed = [0; 4];
    stream.read_exact(&mut fixed).await?;
    let [version_and_command, family, high, low] = fixed;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if version_and_command >> 4 != 2 {
        return Err(Invalid("the version is not 2"));
    }
    if length > MAX_V2_BYTES {
        return Err(Invalid("the header is too long"));
    }
    let mut rest = [0; MAX_V2_BYTES];
    stream.read_exact(&mut rest[..length]).await?;
    let rest = &rest[..length];
    match version_and_command & 0xf {
        0 => Ok(None),
        1 => source_of(family, rest),
        _ => Err(Invalid("the command is neither LOCAL nor PROXY")),
    }
}

/// The source address of version 2 by its family: TCP over IPv4 or IPv6.
fn source_of(family: u8, addresses: &[u8]) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    const TOO_SHORT: ProxyHeaderError = Invalid("the header is shorter than its addresses");
    let port = |at: usize| addresses.get(at..at + 2).map(|port| u16::from_be_bytes([port[0], port[1]]));
    match family {
        0x11 => {
            let ip: [u8; 4] = *addresses.first_chunk().ok_or(TOO_SHORT)?;
            let port = port(8).filter(|_| addresses.len() >= 12).ok_or(TOO_SHORT)?;
            Ok(Some(SocketAddr::new(ip.into(), port)))
        }
        0x21 => {
            let ip: [u8; 16] = *addresses.first_chunk().ok_or(TOO_SHORT)?;
            let port = port(32).filter(|_| addresses.len() >= 36).ok_or(TOO_SHORT)?;
            Ok(Some(SocketAddr::new(ip.into(), port)))
        }
        // UNSPEC and Unix sockets: the client has no address of its own.
        0x00 | 0x31 => Ok(None),
        _ => Err(Invalid("the protocol is not TCP")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(bytes: &[u8]) -> Result<(Option<SocketAddr>, usize), String> {
        let mut rest = bytes;
        let address = read(&mut rest).await.map_err(|error| error.to_string())?;
        Ok((address, rest.len()))
    }

    fn v2(command: u8, family: u8, announced: u16, rest: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[command, family], &announced.to_be_bytes(), rest].concat()
    }

    #[tokio::test]
    async fn the_source_address_is_read_and_nothing_behind_the_header() {
        let v4 = Some("192.0.2.1:56324".parse().unwrap());
        let v6 = Some("[2001:db8::1]:56324".parse().unwrap());
        for (line, address) in [
            ("PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n", v4),
            ("PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n", v6),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
        ] {
            assert_eq!(check(format!("{line}GET /").as_bytes()).await, Ok((address, 5)), "{line}");
        }
        let ports = [0xdc, 0x04, 0x01, 0xbb];
        let four = [&[192, 0, 2, 1, 198, 51, 100, 1][..], &ports].concat();
        let ips = ["2001:db8::1", "2001:db8::2"].map(|ip| ip.parse::<Ipv6Addr>().unwrap().octets());
        let six = [&ips[0][..], &ips[1], &ports].concat();
        let with_extension = [&four[..], &[4, 0, 1, 0]].concat();
        for (header, address) in [
            (v2(0x21, 0x11, 12, &four), v4),
            (v2(0x21, 0x21, 36, &six), v6),
            (v2(0x21, 0x11, 16, &with_extension), v4),
            (v2(0x20, 0x00, 0, &[]), None),
            (v2(0x20, 0x11, 12, &four), None),
            (v2(0x21, 0x31, 0, &[]), None),
        ] {
            assert_eq!(check(&[&header[..], b"GET /"].concat()).await, Ok((address, 5)), "{header:?}");
        }
    }

    #[tokio::test]
    async fn a_header_that_is_missing_or_lies_is_an_error() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"PROXY TCP4 192.0.2.1 198.51.100.1 56324\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443 1\r\n",
            b"PROXY TCP4 2001:db8::1 2001:db8::2 56324 443\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 65536\r\n",
            b"PROXY UDP4 192.0.2.1 198.51.100.1 56324 443\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n",
            b"PROXY \xff\xff\xff\xff\xff\xff\r\n",
        ] {
            assert!(check(bytes).await.is_err(), "{bytes:?}");
        }
        let four = [192, 0, 2, 1, 198, 51, 100, 1, 0, 1, 0, 2];
        for (name, header) in [
            ("shorter than its addresses", v2(0x21, 0x11, 11, &four)),
            ("longer than the connection", v2(0x21, 0x11, 13, &four)),
            ("longer than the bound", v2(0x21, 0x11, u16::MAX, &[0; u16::MAX as usize])),
            ("another version", v2(0x31, 0x11, 12, &four)),
            ("another command", v2(0x22, 0x11, 12, &four)),
            ("UDP", v2(0x21, 0x12, 12, &four)),
        ] {
            assert!(check(&header).await.is_err(), "{name}");
        }
        let whole = v2(0x21, 0x11, 12, &four);
        for end in 0..whole.len() {
            assert!(check(&whole[..end]).await.is_err(), "cut off at {end}");
        }
    }
}
