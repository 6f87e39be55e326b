//! Streams of Redis clients.

use tollgate_server::testing::resp::commands;

use super::{MAX_BYTES, Target, texts};

pub(super) const RESP: Target = Target {
    name: "resp",
    run: |input| {
        let whole = commands(input, input.len().max(1));
        for piece in [1, 3] {
            assert_eq!(
                commands(input, piece),
                whole,
                "commands depend on how they are read, in pieces of {piece}"
            );
        }
    },
    words: &[
        "*1\r\n",
        "*3\r\n",
        "*-1\r\n",
        "$4\r\n",
        "$0\r\n",
        "$-1\r\n",
        "\r\n",
        "PING\r\n",
        "CL.THROTTLE",
        "TOLLGATE.CHECK",
        "HELLO 3",
        "AUTH",
        "\"\\x41\"",
        "'a'",
        "COST",
        "PEEK",
        "user",
        "ip",
    ],
    seeds: || {
        texts(&[
            "*1\r\n$4\r\nPING\r\n",
            "*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\na\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n",
            "*2\r\n$1\r\na\r\n$1\r\nb\r\n*2\r\n$1\r\na\r\n$2\r\nbc\r\n*2\r\n$1\r\na\r\n$10\r\n",
            "TOLLGATE.CHECK user 42 ip 1.2.3.4 path /login COST 2 PEEK\r\n",
            "HELLO 3 AUTH default secret SETNAME app\r\nclient setname \"a\\x41\"\r\nQUIT\r\n",
        ])
    },
    max_bytes: MAX_BYTES,
};
