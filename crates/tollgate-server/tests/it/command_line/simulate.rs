//! `tollgate simulate` and `tollgate suggest`: what they print about a log, and how they end.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tollgate_testkit::{Folder, binary, run, tollgate};

use crate::command_line::{fails, json_of};

const RULES: &str = "rules:
  - { id: login, match: POST /login, key: ip, limit: 2/m }
  - { id: by-email, match: POST /login, key: email, limit: 2/m }
  - { id: trial, key: ip, limit: 1/m, mode: shadow }
";

/// Ten logins of one address within ten seconds, and one of another.
fn log() -> String {
    let line = |ip: &str, second: u32| {
        format!(
            "{ip} - - [01/Jan/2026:00:00:{second:02} +0000] \"POST /login HTTP/1.1\" 200 1 \"-\" \"curl\"\n"
        )
    };
    let many: String = (0..10).map(|second| line("192.0.2.1", second)).collect();
    many + &line("192.0.2.2", 9)
}

struct Files {
    folder: Arc<Folder>,
}

impl Files {
    fn new() -> Files {
        let folder = Folder::new();
        folder.write("new.yaml", RULES);
        folder.write("access.log", log());
        Files { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path(name).to_str().expect("a plain path").to_owned()
    }

    fn simulate(&self, args: &[&str]) -> tollgate_testkit::CommandOutput {
        let files = [self.path("access.log"), self.path("new.yaml")];
        tollgate(&[&["simulate", &files[0], "-c", &files[1]], args].concat())
    }
}

#[test]
fn a_simulation_counts_denials_by_rule_and_key() {
    let files = Files::new();
    let report = json_of(&files.simulate(&["--json"]));
    assert_eq!((&report["requests"], &report["denied"]), (&11.into(), &8.into()), "{report}");
    let login = &report["rules"][0];
    assert_eq!(login["rule"], "login");
    assert_eq!((&login["allowed"], &login["denied"], &login["clients"]), (&3.into(), &8.into(), &1.into()));
    assert_eq!(login["worst"], serde_json::json!([{ "key": "ip:192.0.2.1", "denied": 8 }]));
    let trial = &report["rules"][2];
    assert_eq!((&trial["mode"], &trial["denied"]), (&"shadow".into(), &9.into()), "{report}");
    let printed = files.simulate(&[]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    for word in ["11 requests", "denied: 8 (72.73 %)", "2026-01-01T00:00:00Z", "ip:192.0.2.1"] {
        assert!(printed.stdout.contains(word), "{word}: {printed:?}");
    }
    assert!(printed.stderr.contains("rule by-email never applies: no line has email"), "{printed:?}");
}

#[test]
fn more_denials_than_allowed_fail() {
    let files = Files::new();
    assert_eq!(files.simulate(&["--max-denied", "73%"]).code, Some(0));
    let failed = files.simulate(&["--max-denied", "72%"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("8 of 11 requests are denied"), "{failed:?}");
    fails(&files.simulate(&["--max-denied", "72"]), 2, &["a percentage"]);
}

#[test]
fn a_comparison_names_who_is_newly_denied() {
    let files = Files::new();
    files.folder.write("old.yaml", RULES.replace("limit: 2/m", "limit: 9/m"));
    let report = json_of(&files.simulate(&["--json", "--compare", &files.path("old.yaml")]));
    let compare = &report["compare"];
    // Nine at once, and the tenth after 6.7 s: the old limit denies nothing.
    assert_eq!(compare["denied"], 0, "{report}");
    assert_eq!((&compare["newly_denied"], &compare["newly_allowed"]), (&8.into(), &0.into()), "{report}");
    assert_eq!(compare["rules"]["login"]["worst"][0]["key"], "ip:192.0.2.1", "{report}");
}

#[test]
fn algorithms_and_a_plot_are_made_from_the_same_log() {
    let files = Files::new();
    let plot = files.path("plot.svg");
    let report = json_of(&files.simulate(&["--json", "--algorithms", "--plot", &plot]));
    let algorithms = report["algorithms"].as_array().expect("a list");
    let denied = |name: &str| {
        let found = algorithms.iter().find(|each| each["algorithm"] == name);
        found.unwrap_or_else(|| panic!("{name}: {report}"))["denied"].as_u64()
    };
    assert_eq!(algorithms.len(), 8, "{report}");
    assert_eq!((denied("gcra"), denied("fixed-window"), denied("sliding-log")), (Some(8), Some(8), Some(8)));
    let drawn = std::fs::read_to_string(plot).expect("the plot was written");
    assert!(drawn.starts_with("<svg") && drawn.contains("<rect"), "{drawn}");
}

#[test]
fn a_log_from_stdin_is_recognised_by_its_content() {
    let files = Files::new();
    let lines = r#"{"ts":1767225600.1,"request":{"client_ip":"192.0.2.1","method":"POST","host":"a","uri":"/login"},"status":200}
"#;
    let mut command = binary();
    command.args(["simulate", "-", "-c", &files.path("new.yaml"), "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(lines.repeat(5).as_bytes()).expect("it reads");
    let done = child.wait_with_output().expect("it ends");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!((&report["requests"], &report["denied"]), (&5.into(), &3.into()), "{report}");
}

#[test]
fn bad_logs_and_configurations_are_told_apart() {
    let files = Files::new();
    let new = files.path("new.yaml");
    fails(
        &tollgate(&["simulate", &files.path("none.log"), "-c", &new]),
        2,
        &["none.log", "cannot be opened"],
    );
    files.folder.write("gz.log", [0x1f, 0x8b, 8, 0]);
    fails(&tollgate(&["simulate", &files.path("gz.log"), "-c", &new]), 2, &["is compressed", "zcat"]);
    files.folder.write("odd.log", "what is\nthis\n");
    fails(
        &tollgate(&["simulate", &files.path("odd.log"), "-c", &new]),
        2,
        &["no known log format", "--format"],
    );
    // A regression: a log of which no line could be read had no requests, and passed.
    for (name, text, why) in [
        ("no-time.log", "{\"a\": 1}\n{\"a\": 2}\n", "line 1: the line has no time"),
        ("array.log", "[{\"ts\": 1800000000}]\n", "one JSON object a line: `jq"),
        ("no-time.csv", "ip,path\n192.0.2.1,/x\n", "the header has no column of time"),
    ] {
        files.folder.write(name, text);
        let ran = tollgate(&["simulate", &files.path(name), "-c", &new, "--max-denied", "1%"]);
        fails(&ran, 2, &["no known log format", why]);
    }
    files.folder.write("bad.yaml", "rules: [{ id: a, limit: many }]");
    fails(
        &tollgate(&["simulate", &files.path("access.log"), "-c", &files.path("bad.yaml")]),
        3,
        &["bad.yaml:1"],
    );
    files.folder.write("access.log", log() + "nonsense\n");
    let ran = files.simulate(&["--json"]);
    assert!(ran.code == Some(0) && ran.stderr.contains("1 line could not be read; the first is"), "{ran:?}");
    assert!(ran.stderr.contains("access.log:12:"), "{ran:?}");
    files.folder.write("empty.log", "");
    let ran = tollgate(&["simulate", &files.path("empty.log"), "-c", &new, "--json", "--max-denied", "0%"]);
    assert_eq!((ran.code, &json_of(&ran)["requests"]), (Some(0), &0.into()), "{ran:?}");
}

#[test]
fn a_list_of_rules_is_a_configuration_too() {
    let files = Files::new();
    files.folder.write("list.yaml", "- { id: login, key: ip, limit: 2/m }\n");
    let report = json_of(&tollgate(&[
        "simulate",
        &files.path("access.log"),
        "-c",
        &files.path("list.yaml"),
        "--json",
    ]));
    assert_eq!(report["denied"], 8, "{report}");
}

#[test]
fn suggested_limits_spare_most_clients_and_name_the_others() {
    let files = Files::new();
    let line = |client: u32, second: u32| {
        let ip = format!("10.0.{}.{}", client / 250, client % 250);
        format!("{ip} - - [01/Jan/2026:00:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n")
    };
    let quiet: String = (0..999).map(|client| line(client, 1)).collect();
    let busy: String = (0..30).map(|n| line(999, n)).collect();
    files.folder.write("access.log", quiet + &busy);
    let log = files.path("access.log");
    let report = json_of(&tollgate(&["suggest", &log, "--json"]));
    assert_eq!((&report["clients"], &report["requests"]), (&1000.into(), &1029.into()), "{report}");
    let first = &report["limits"][0];
    assert_eq!((&first["limit"], &first["clients"]), (&"1/m".into(), &1.into()), "{report}");
    assert_eq!(first["worst"][0], serde_json::json!({ "key": "ip:10.0.3.249", "peak": 30, "requests": 30 }));
    let printed = tollgate(&["suggest", &log, "--window", "10s", "--match", "GET /"]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(printed.stdout.contains("1/10s") && printed.stdout.contains("ip:10.0.3.249"), "{printed:?}");
    fails(&tollgate(&["suggest", &log, "--by", "nose"]), 2, &["--by nose"]);
    fails(&tollgate(&["suggest", &log, "--window", "soon"]), 2, &["a period"]);
    let line = |n: u32| if n.is_multiple_of(5) { line(59, n % 60) } else { line(n % 59, n % 60) };
    files.folder.write("few.log", (0..300).map(line).collect::<String>());
    let few = tollgate(&["suggest", &files.path("few.log")]);
    assert!(few.stdout.contains("59 of 60 clients") && few.stdout.contains("highest peaks:"), "{few:?}");
    assert!(few.stdout.contains("ip:10.0.0.59") && few.stderr.contains("too few for 99 %"), "{few:?}");
    files.folder.write("one.log", line(1));
    let one = tollgate(&["suggest", &files.path("one.log")]);
    assert!(one.stderr.contains("note: 1 client is too few for 99 %"), "{one:?}");
    let none = tollgate(&["suggest", &log, "--by", "user"]);
    assert!(none.stderr.contains("1029 requests without user left out"), "{none:?}");
}

/// Checks the sums of all parts, decompresses the dots, and prints the size and the colours in use.
const READ_PNG: &str = r"
import struct, sys, zlib
data = open(sys.argv[1], 'rb').read()
assert data[:8] == b'\x89PNG\r\n\x1a\n'
at, parts = 8, {}
while at < len(data):
    length, kind = struct.unpack('>I4s', data[at:at + 8])
    body = data[at + 8:at + 8 + length]
    assert struct.unpack('>I', data[at + 8 + length:at + 12 + length])[0] == zlib.crc32(kind + body)
    parts[kind] = body
    at += 12 + length
width, height = struct.unpack('>II', parts[b'IHDR'][:8])
rows = zlib.decompress(parts[b'IDAT'])
assert len(rows) == (width + 1) * height
above, used = bytes(width), set()
for n in range(height):
    assert rows[n * (width + 1)] == 2
    row = rows[n * (width + 1) + 1:(n + 1) * (width + 1)]
    above = bytes((dot + up) % 256 for dot, up in zip(row, above))
    used |= set(above)
print(width, height, *sorted(used))
";

#[test]
fn a_plot_is_drawn_as_png_where_the_file_is_named_so() {
    let files = Files::new();
    let plot = files.path("plot.png");
    assert_eq!(files.simulate(&["--plot", &plot]).code, Some(0));
    let read = run(Command::new("python3").args(["-c", READ_PNG, &plot]));
    assert_eq!((read.code, read.stdout.trim()), (Some(0), "2000 700 0 1 2 3 4 5"), "{read:?}");
    assert!(std::fs::metadata(&plot).is_ok_and(|file| file.len() < 100_000), "it is compressed");
    fails(&files.simulate(&["--plot", "plot.jpg"]), 2, &[".svg or .png"]);
}
