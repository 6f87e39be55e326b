//! The file of tests: its configuration or rules, a start time, and tests of steps.

use std::path::Path;

use serde_json::{Map, Value, json};
use tollgate::Time;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::document::{self, MapReader, Node, Problems};
use tollgate::internal::policy::PolicyParts;
use tollgate::internal::time::{calendar, parse_duration};

use super::{Action, Scenario, ScenarioStep, problem};
use crate::cli::yaml;
use crate::config::Config;
use crate::transport::http::CheckRequest;

const DEFAULT_START: Time = Time::from_secs(1_767_225_600); // 2026-01-01T00:00:00Z
const MAX_TIMES: u64 = 1_000_000;
/// Fields of a verdict that a test may expect.
const EXPECTED: [&str; 9] = [
    "allowed",
    "reason",
    "rule",
    "limit",
    "remaining",
    "retry_after_ms",
    "reset_after_ms",
    "delay_ms",
    "message",
];

pub struct ScenarioFile {
    /// The text of `rules` and everything else, if the file has its own rules.
    inline: Option<String>,
    config: Option<String>,
    pub start: Time,
    pub tests: Vec<Scenario>,
}

impl ScenarioFile {
    pub fn parse(text: &str) -> Result<ScenarioFile, Problems> {
        let root = document::read(text)?;
        let mut problems = Problems::new();
        let mut map = MapReader::new(&root, "", &mut problems).ok_or_else(Problems::new);
        let parsed = map.as_mut().ok().map(read_file);
        match (map, parsed) {
            (Ok(map), Some(parsed)) => {
                map.finish();
                let inline = parsed.has_rules.then(|| text.to_owned());
                problems.or(ScenarioFile {
                    inline,
                    config: parsed.config,
                    start: parsed.start,
                    tests: parsed.tests,
                })
            }
            _ => Err(problems),
        }
    }

    /// The rules under test. `config` takes precedence over what the file names.
    pub fn policy(
        &self,
        folder: &Path,
        config: Option<&Path>,
        name: &str,
    ) -> Result<PolicySnapshot, Problems> {
        let named = self.config.as_ref().map(|file| folder.join(file));
        if let Some(path) = config.or(named.as_deref()) {
            let (mut config, _) = Config::load(path)?;
            return config.take_policy().map_err(|problems| problems.in_file(&path.display().to_string()));
        }
        let Some(text) = &self.inline else {
            return Err(problem("names no rules: set config: FILE, or rules:").in_file(name));
        };
        let read = || {
            let root = document::read(text)?;
            let mut problems = Problems::new();
            let mut parts = PolicyParts::default();
            if let Some(mut map) = MapReader::new(&root, "", &mut problems) {
                parts.read(&mut map);
            }
            let parts = problems.or(parts)?;
            PolicySnapshot::new(parts).map_err(problem)
        };
        read().map_err(|problems: Problems| problems.in_file(name))
    }
}

struct ParsedFile {
    config: Option<String>,
    has_rules: bool,
    start: Time,
    tests: Vec<Scenario>,
}

fn read_file(map: &mut MapReader<'_, '_>) -> ParsedFile {
    let config = map.optional_text("config").map(str::to_owned);
    let mut has_rules = map.optional("rules").is_some();
    has_rules |= map.optional("allow").is_some();
    has_rules |= map.optional("bans").is_some();
    if let (Some(node), true) = (map.optional("config"), has_rules) {
        map.reject("config", node, "the file has rules of its own: remove one of the two");
    }
    let start_node = map.optional("start");
    let start = start_node.and_then(Node::as_str).and_then(calendar::parse_rfc3339);
    if let (Some(node), None) = (start_node, start) {
        map.reject("start", node, "expected a timestamp such as 2026-01-01T00:00:00Z");
    }
    let nodes = map.required("tests").and_then(Node::as_list);
    if let (None, Some(node)) = (nodes, map.optional("tests")) {
        map.reject("tests", node, document::expected("a list", node));
    }
    let nodes = nodes.unwrap_or_default();
    let tests = nodes.iter().enumerate().filter_map(|(n, node)| read_test(node, n, map.problems())).collect();
    ParsedFile { config, has_rules, start: start.unwrap_or(DEFAULT_START), tests }
}

fn read_test(node: &Node<'_>, number: usize, problems: &mut Problems) -> Option<Scenario> {
    let path = format!("tests[{number}]");
    let mut map = MapReader::new(node, path.clone(), problems)?;
    let name = map.required_text("name").unwrap_or_default().to_owned();
    let nodes = map.required("steps").and_then(Node::as_list).unwrap_or_default();
    let steps = nodes
        .iter()
        .enumerate()
        .filter_map(|(n, node)| read_step(node, &format!("{path}.steps[{n}]"), map.problems()));
    let steps = steps.collect();
    map.finish();
    Some(Scenario { name, steps })
}

fn read_step(node: &Node<'_>, path: &str, problems: &mut Problems) -> Option<ScenarioStep> {
    let mut map = MapReader::new(node, path.to_owned(), problems)?;
    let line = map.position().line;
    let wait = map.optional("wait");
    let send = map.optional("send");
    let action = match (wait, send) {
        (Some(node), None) => match node.as_str().map(parse_duration) {
            Some(Ok(wait)) => Some(Action::Wait(wait)),
            _ => {
                map.reject("wait", node, "expected a duration such as 12s");
                None
            }
        },
        (None, Some(node)) => read_send(node, &mut map),
        _ => {
            map.reject_map("a step has either `send` or `wait`");
            None
        }
    };
    map.finish();
    Some(ScenarioStep { line, action: action? })
}

fn read_send(node: &Node<'_>, map: &mut MapReader<'_, '_>) -> Option<Action> {
    let request = match node.as_str() {
        Some(target) => {
            let (method, path) = target.split_once(' ').unwrap_or(("", target));
            json!({ "method": method, "path": path.trim_start() })
        }
        None => yaml::to_json(node),
    };
    let request = request.to_string().into_bytes();
    if let Err(rejected) = CheckRequest::parse(&request).and_then(|request| request.hit().map(drop)) {
        map.reject("send", node, rejected.detail);
        return None;
    }
    let times = map.optional_u64("times").unwrap_or(1);
    if let (Some(node), false) = (map.optional("times"), (1..=MAX_TIMES).contains(&times)) {
        map.reject("times", node, format!("expected a number from 1 to {MAX_TIMES}"));
    }
    let status = map.optional_u64("status").and_then(|status| u16::try_from(status).ok());
    let expected = map.optional("expect").and_then(|node| read_expected(node, map)).unwrap_or_default();
    Some(Action::Send { request, times, status, expected })
}

fn read_expected(node: &Node<'_>, map: &mut MapReader<'_, '_>) -> Option<Map<String, Value>> {
    let single = |allowed: bool| Some(Map::from_iter([("allowed".to_owned(), allowed.into())]));
    match node.as_str() {
        Some("allowed") => return single(true),
        Some("denied") => return single(false),
        _ => {}
    }
    let Some(entries) = node.as_map() else {
        map.reject("expect", node, "expected allowed, denied, or fields of a verdict");
        return None;
    };
    let mut expected = Map::new();
    for entry in entries {
        if !EXPECTED.contains(&entry.key()) {
            let known = EXPECTED.join(", ");
            map.reject(
                &format!("expect.{}", entry.key()),
                entry.value(),
                format!("unknown field: use {known}"),
            );
        }
        expected.insert(entry.key().to_owned(), yaml::to_json(entry.value()));
    }
    Some(expected)
}
