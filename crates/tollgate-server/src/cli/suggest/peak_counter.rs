//! The peaks of clients under a query: which requests are looked at, what identifies a client, and the period.

use thiserror::Error;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::http::FieldSelection;
use tollgate::internal::identity::{Attribute, Key};
use tollgate::internal::limit::Rate;
use tollgate::internal::time::Period;
use tollgate::{Hit, Time};

use super::client_peaks::ClientPeaks;
use super::report::SuggestReport;

pub struct PeakQuery {
    /// Names of attributes, which are counted together.
    pub by: Vec<String>,
    pub window: Period,
    /// As in a rule: `[METHOD ]PATH`.
    pub pattern: Option<String>,
}

/// Why a query cannot be answered.
#[derive(Debug, Error)]
pub enum PeakQueryError {
    #[error("by {name}: {why}")]
    By { name: String, why: String },
    #[error("{0}")]
    Pattern(String),
}

impl PeakQueryError {
    /// The parameter that is wrong.
    pub fn field(&self) -> &'static str {
        match self {
            PeakQueryError::By { .. } => "by",
            PeakQueryError::Pattern(_) => "match",
        }
    }
}

/// A period such as `1m`.
pub fn parse_window(text: &str) -> Result<Period, String> {
    let rate: Rate =
        format!("1/{text}").parse().map_err(|_| "expected a period such as 1s, 1m or 1h".to_owned())?;
    Ok(rate.period())
}

pub struct PeakCounter {
    query: PeakQuery,
    by: Vec<Attribute>,
    /// One rule, so that requests match and identities are read as in the server.
    policy: PolicySnapshot,
    fields: FieldSelection,
    peaks: ClientPeaks,
    /// Requests that match and have no such identity.
    pub without_key: u64,
}

impl PeakCounter {
    pub fn new(query: PeakQuery) -> Result<PeakCounter, PeakQueryError> {
        let parse = |name: &String| {
            let wrong = |why: String| PeakQueryError::By { name: name.clone(), why };
            Attribute::parse(name).map_err(|why| wrong(why.to_string()))
        };
        let by = query.by.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let rule = serde_json::json!({
            "id": "suggested", "match": query.pattern, "key": query.by, "limit": "1/s"
        });
        let policy = PolicySnapshot::from_yaml(&serde_json::json!({ "rules": [rule] }).to_string());
        let policy = policy.map_err(|problems| {
            let messages: Vec<_> = problems.iter().map(|problem| problem.message().to_owned()).collect();
            PeakQueryError::Pattern(messages.join("; "))
        })?;
        let fields = FieldSelection::of_policy(&policy, &[]);
        let peaks = ClientPeaks::new(query.window);
        Ok(PeakCounter { query, by, policy, fields, peaks, without_key: 0 })
    }

    /// The fields that a request must have.
    pub fn fields(&self) -> &FieldSelection {
        &self.fields
    }

    /// Whether clients are told apart by this attribute.
    pub fn is_by(&self, attribute: &Attribute) -> bool {
        self.by.contains(attribute)
    }

    /// Counts a request if it matches; times never go back. Returns whether it was counted.
    pub fn add(&mut self, hit: &Hit<'_>, at: Time) -> bool {
        if self.policy.matching(hit).len() == 0 {
            return false;
        }
        let key = self.key_text(hit);
        match &key {
            Some(key) => self.peaks.add(key, at),
            None => self.without_key += 1,
        }
        key.is_some()
    }

    fn key_text(&self, hit: &Hit<'_>) -> Option<String> {
        let part = |attribute: &Attribute| {
            Some((attribute.clone(), self.policy.value(hit, attribute)?.into_owned()))
        };
        Key::new(self.by.iter().map(part).collect::<Option<Vec<_>>>()?).ok().map(|key| key.to_string())
    }

    /// The report, if one client in `sampled_one_in` was counted. Keys are listed as `shown` writes them.
    pub fn report(self, sampled_one_in: u64, shown: impl Fn(&str) -> String) -> SuggestReport {
        SuggestReport::new(
            self.query.by.join("+"),
            self.query.window,
            &self.peaks.report(),
            sampled_one_in,
            shown,
        )
    }
}
