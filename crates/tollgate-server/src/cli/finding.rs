//! What a check found: each finding with its severity, and what to do about it.

use serde_json::{Value, json};
use tollgate::internal::document::Problems;

use crate::cli::out;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    Ok,
    /// Works, but is probably not intended.
    Warning,
    /// A server that is needed does not answer.
    Unreachable,
    /// The server would not start.
    Error,
}

impl Severity {
    const fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Unreachable => "unreachable",
            Severity::Error => "error",
        }
    }
}

pub struct Finding {
    /// A setting of the file, or what was looked at.
    pub what: String,
    pub severity: Severity,
    pub detail: String,
    pub fix: Option<String>,
}

#[derive(Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    pub fn ok(&mut self, what: &str, detail: impl Into<String>) {
        self.push(what, Severity::Ok, detail.into(), None);
    }

    pub fn warning(&mut self, what: &str, detail: impl Into<String>, fix: &str) {
        self.push(what, Severity::Warning, detail.into(), Some(fix.to_owned()));
    }

    pub fn unreachable(&mut self, what: &str, detail: impl Into<String>, fix: &str) {
        self.push(what, Severity::Unreachable, detail.into(), Some(fix.to_owned()));
    }

    pub fn error(&mut self, what: &str, detail: impl Into<String>, fix: &str) {
        self.push(what, Severity::Error, detail.into(), Some(fix.to_owned()));
    }

    /// One error for each problem.
    pub fn problems(&mut self, problems: &Problems, fix: &str) {
        for problem in problems.iter() {
            let place = problem.position().map(|at| format!(" line {}", at.line)).unwrap_or_default();
            let what = if problem.path().is_empty() { "configuration" } else { problem.path() };
            let file = problem.file().map(|file| format!("{file}{place}: ")).unwrap_or_default();
            self.error(what, format!("{file}{}", problem.message()), fix);
        }
    }

    fn push(&mut self, what: &str, severity: Severity, detail: String, fix: Option<String>) {
        self.0.push(Finding { what: what.to_owned(), severity, detail, fix });
    }

    /// The result of a check: its error, or what was found.
    pub fn check(&mut self, what: &str, result: Result<String, Problems>, fix: &str) {
        match result {
            Ok(detail) => self.ok(what, detail),
            Err(problems) => self.problems(&problems, fix),
        }
    }

    /// Whether something is known to be wrong with a setting.
    pub fn has_error(&self, what: &str) -> bool {
        self.0.iter().any(|finding| finding.what == what && finding.severity == Severity::Error)
    }

    pub fn worst(&self) -> Severity {
        self.0.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }

    pub fn print(&self) {
        let width = self.0.iter().map(|finding| finding.what.chars().count()).max().unwrap_or(0);
        for finding in &self.0 {
            let name = finding.severity.name();
            let detail = out::escape_control(&finding.detail);
            out::line(format!("{name:<11}  {:<width$}  {detail}", finding.what));
            if let Some(fix) = &finding.fix {
                out::line(format!("{:<11}  {:<width$}  fix: {}", "", "", out::escape_control(fix)));
            }
        }
    }

    pub fn json(&self) -> Value {
        let one = |finding: &Finding| {
            json!({
                "what": finding.what,
                "severity": finding.severity.name(),
                "detail": finding.detail,
                "fix": finding.fix,
            })
        };
        json!({ "worst": self.worst().name(), "findings": self.0.iter().map(one).collect::<Vec<_>>() })
    }
}
