//! The script of docs/stores.md that lists fixed windows, run as an operator pastes it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Shape;
use tollgate::internal::limit::WindowStart;
use tollgate::internal::time::calendar::{parse_rfc3339, rfc3339};
use tollgate_testkit::central::{FIXED, hit, limit, own};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::stores::redis::{ServerTime, ready};
use tollgate_testkit::{Folder, find, not_run};

const FIRST_HIT: Shape = Shape::FixedWindow { start: WindowStart::FirstHit };
/// Nothing in a key is special to the shell that lists it.
const STRANGE: &str = r#"user:$(id)+zone:'"`*\n"#;
/// Rule, key, rate, window, hits.
const CHARGED: [(&str, &str, &str, Shape, usize); 5] = [
    ("day", "user:42", "9/d", FIXED, 3),
    ("week", "ip:1.2.3.4+user:42", "9/2w", FIXED, 2),
    ("month", STRANGE, "9/month", FIXED, 1),
    ("year", "user:42", "9/y", FIXED, 1),
    ("first", "user:42", "9/10h", FIRST_HIT, 4),
];
const SLACK: Duration = Duration::from_secs(120);

#[tokio::test]
async fn the_documented_script_lists_rule_identity_window_and_count() {
    let what = "the script that lists windows";
    let Some(server) = Redis::start(Make::Redis, what) else { return };
    let Some(client) = find("redis-cli") else { return not_run(what, "no redis-cli") };
    let store = ready(&server.url()).await;
    let (at, listed) = loop {
        let at = server_time(&server);
        charge_all(&store).await;
        let listed = list(&server, &client.display().to_string());
        if at.secs() / 86_400 == server_time(&server).secs() / 86_400 {
            break (at, listed);
        }
        server.command(&["FLUSHALL"]); // midnight: the windows are others now
    };
    let mut rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split(' ').collect()).collect();
    rows.sort();
    let [day, first, month, week, year] = <[Vec<&str>; 5]>::try_from(rows).expect("five windows are listed");
    check(&day, "default:day:{user:42}:fixed-window-d", "9/d", "3", at);
    let strange = r#"default:month:{user:$(id)}|user:$(id)+zone:'"`*\n:fixed-window-month"#;
    check(&month, strange, "9/month", "1", at);
    check(&week, "default:week:{ip:1.2.3.4}|ip:1.2.3.4+user:42:fixed-window-2w", "9/2w", "2", at);
    check(&year, "default:year:{user:42}:fixed-window-y", "9/y", "1", at);
    assert_eq!((first[0], first[3]), ("default:first:{user:42}:fixed-window-first-hit-10h", "4"), "{listed}");
    let [start, end] = [first[1], first[2]].map(|text| parse_rfc3339(text).expect("an instant"));
    assert_eq!(end.since(start), Duration::from_secs(36_000), "{listed}");
    assert!(start <= at + SLACK && at <= start + SLACK, "{listed}");
}

fn check(row: &[&str], name: &str, rate: &str, hits: &str, at: Time) {
    let period = limit(rate, FIXED).rate().period();
    let index = period.index_at(at);
    let [start, end] = [index, index + 1].map(|index| period.start_of(index));
    assert_eq!(row[..4], [name, &*rfc3339(start), &*rfc3339(end), hits]);
    let lives = Duration::from_secs(row[4].parse().expect("seconds until it expires"));
    assert!(at + lives <= end && end <= at + lives + SLACK, "{row:?} at {at:?}");
}

/// Fixed windows, and a counter of another algorithm, which is not listed.
async fn charge_all(store: &ServerTime) {
    for (rule, key, rate, shape, hits) in CHARGED {
        for _ in 0..hits {
            hit(store, &own(rule, key, limit(rate, shape))).await.expect("it is charged");
        }
    }
    let bucket = own("bucket", "user::fixed-window-d", limit("9/d", Shape::GCRA));
    hit(store, &bucket).await.expect("it is charged");
}

/// The output of the script with a redis-cli for this server.
fn list(server: &Redis, client: &str) -> String {
    let docs = include_str!("../../../../../docs/stores.md");
    let script =
        docs.split("<!-- redis-windows -->\n```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let folder = Folder::new();
    let wrapper = folder.path("redis-cli");
    fs::write(&wrapper, format!("#!/bin/sh\nexec '{client}' -p {} \"$@\"\n", server.port))
        .expect("a file of ours");
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).expect("a file of ours");
    let path = format!("{}:{}", folder.root().display(), std::env::var("PATH").unwrap_or_default());
    let script = script.expect("the script is in the docs");
    let ran = Command::new("sh").args(["-c", script]).env("PATH", path).output().expect("there is a shell");
    assert!(ran.status.success() && ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("text")
}

fn server_time(server: &Redis) -> Time {
    let answer = server.command(&["TIME"]);
    Time::from_secs(answer.lines().nth(2).and_then(|seconds| seconds.parse().ok()).expect("seconds"))
}
