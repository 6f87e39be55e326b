//! Metrics of a running node.

use tollgate_testkit::{Folder, Server, eventually};

const RULES: &str = "rules: [{ id: a, key: user, limit: 5/y }]\n";

fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{page}"))
}

fn page(server: &Server) -> String {
    server.admin("GET", "/metrics", "").text()
}

#[test]
fn a_rejected_change_shows_until_the_file_is_valid_again() {
    let folder = Folder::new();
    folder.configure(RULES);
    let server = Server::start_in(&folder);
    let last_reload = || value(&page(&server), "tollgate_config_last_reload_success");
    assert_eq!(last_reload(), 1.0, "a node that started has read its file");
    folder.configure("rules: [{ id: a, key: user, limit: many }]\n");
    eventually("the change is rejected", || last_reload() == 0.0);
    folder.configure(RULES);
    eventually("the change is undone", || last_reload() == 1.0);
    folder.configure("rules: [{}]\n");
    eventually("the change is rejected", || last_reload() == 0.0);
    folder.configure(&RULES.replace("5/y", "6/y"));
    eventually("the file is valid", || last_reload() == 1.0);
    let page = page(&server);
    let loaded = value(&page, "tollgate_config_last_reload_success_timestamp_seconds");
    assert!(loaded >= value(&page, "process_start_time_seconds").floor(), "{page}");
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_is_described() {
    let server = Server::start(RULES);
    let before = page(&server);
    let resident = value(&before, "process_resident_memory_bytes");
    assert!(resident > 1e6 && resident <= value(&before, "process_virtual_memory_bytes"), "{before}");
    let open = value(&before, "process_open_fds");
    assert!(open > 2.0 && open <= value(&before, "process_max_fds"), "{before}");
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs_f64();
    let age = now - value(&before, "process_start_time_seconds");
    assert!((-2.0..600.0).contains(&age), "{age}: {before}");
    let cpu = value(&before, "process_cpu_seconds_total");
    assert!(cpu > 0.0);
    assert!(value(&page(&server), "process_cpu_seconds_total") > cpu);
}
