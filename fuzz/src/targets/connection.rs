//! What precedes the protocol of a connection.

use tollgate_server::testing::connection::proxy_header;

use super::{MAX_BYTES, Target};

const V2: &str = "\r\n\r\n\0\r\nQUIT\n";

pub(super) const PROXY_HEADER: Target = Target {
    name: "proxy_header",
    run: |input| {
        let read = proxy_header(input);
        let Some((_, length)) = read else { return };
        assert!(length <= input.len(), "it ends inside the input");
        assert_eq!(proxy_header(&input[..length]), read, "it does not depend on what follows");
        assert_eq!(proxy_header(&input[..length - 1]), None, "it is read to its last byte");
    },
    words: &[
        "PROXY ",
        "TCP4 ",
        "TCP6 ",
        "UNKNOWN",
        "192.0.2.1 198.51.100.1 56324 443\r\n",
        "2001:db8::1 ",
        "\r\n",
        V2,
        "\x21\x11\0\x0c",
        "\x21\x21\0\x24",
        "\x20\0\0\0",
    ],
    seeds: || {
        let v2 =
            [V2.as_bytes(), b"\x21\x11\0\x0c", &[192, 0, 2, 1, 198, 51, 100, 1, 220, 4, 1, 187]].concat();
        let v6 = [V2.as_bytes(), b"\x21\x21\0\x24", &[7; 36]].concat();
        let line = |line: &str| line.as_bytes().to_vec();
        vec![
            line("PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\nGET / HTTP/1.1\r\n"),
            line("PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n"),
            line("PROXY UNKNOWN\r\n"),
            v2,
            v6,
        ]
    },
    max_bytes: MAX_BYTES,
};
