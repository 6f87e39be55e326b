//! `tollgate demo`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use tollgate_testkit::{Client, binary, eventually, tollgate};

#[test]
fn the_demo_shows_five_of_seven_and_takes_free_ports_where_the_usual_ones_are_busy() {
    let hold = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).ok();
    let held: Vec<_> = [8000, 8080, 7070].iter().filter_map(hold).collect();
    let ran = tollgate(&["demo", "--once"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.matches("  201 Created").count(), 6, "{ran:?}");
    assert_eq!(ran.stdout.matches("  429 Too Many Requests").count(), 2, "{ran:?}");
    assert_eq!(ran.stdout.matches("retry-after: ").count(), 2, "{ran:?}");
    assert_eq!(ran.stdout.matches("http://127.0.0.1:").count(), 3, "{ran:?}");
    for listener in held {
        let port = listener.local_addr().expect("an address").port();
        assert!(ran.stderr.contains(&format!("port {port} is busy")), "{ran:?}");
    }
}

#[test]
fn the_demo_serves_until_a_stop_signal() {
    let mut command = binary();
    let mut demo = Running(command.arg("demo").stdout(Stdio::piped()).spawn().expect("the binary starts"));
    let said = BufReader::new(demo.0.stdout.take().expect("stdout is piped"));
    let said: Vec<_> =
        said.lines().map_while(Result::ok).take_while(|line| !line.contains("Ctrl-C")).collect();
    let api = said.iter().find_map(|line| line.strip_prefix("The API")?.trim().strip_prefix("http://"));
    let api = api.and_then(|api| api.parse().ok()).unwrap_or_else(|| panic!("no address in {said:#?}"));
    for status in [201, 201, 201, 429] {
        let answer = Client::to(api).request("POST", "/cab-booking", &[("x-user", "you")], b"");
        assert_eq!(answer.status, status, "{answer}");
        let refused = answer.header("content-type") == Some("application/problem+json");
        assert_eq!(
            (refused, answer.header("retry-after").is_some()),
            (status == 429, status == 429),
            "{answer}"
        );
    }
    let id = demo.0.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().expect("kill runs").success());
    eventually("the demo ends", || demo.0.try_wait().is_ok_and(|ended| ended.is_some()));
    assert_eq!(demo.0.wait().expect("it has ended").code(), Some(0));
}

/// Killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
