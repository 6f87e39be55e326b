//! `/` and `/dashboard/…`: the files of the dashboard, embedded in the binary. They contain no data, so they are open to
//! all callers: the page reads the admin API with a token that it keeps in memory.

use std::sync::LazyLock;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY,
};
use hyper::{Response, StatusCode};
use ring::digest::{SHA256, digest};

use crate::admin::request::AdminRequest;
use crate::connection::FullResponse;
use crate::response::ProblemDetails;

/// Only files of this server are loaded, and no text becomes markup or a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

struct DashboardFile {
    name: &'static str,
    body: &'static [u8],
}

macro_rules! files {
    ($($name:literal)*) => {
        &[$(DashboardFile { name: $name, body: include_bytes!(concat!("../dashboard/", $name)) }),*]
    };
}

const PAGE: &str = "index.html";

static FILES: &[DashboardFile] = files! {
    "index.html" "icon.svg" "base.css" "style.css" "api.js" "automatic_bans.js" "ban_form.js" "bans.js"
    "change_effect.js" "changes.js" "chart.js" "commands.js" "decisions.js" "dialog.js" "diff.js" "dom.js"
    "explain_input.js" "fleet.js" "format.js" "headroom.js" "health.js" "key_tables.js" "keys.js" "live.js"
    "main.js" "metrics.js" "overview.js" "overview_fleet.js" "page_state.js" "ramp.js" "rollback.js"
    "rule_editor.js" "rule_picker.js" "rule_traffic.js" "rules.js" "series.js" "session.js" "simulate.js"
    "simulation.js" "status.js" "table.js" "token.js" "yaml.js"
};

static ETAGS: LazyLock<Vec<HeaderValue>> =
    LazyLock::new(|| FILES.iter().map(|file| etag(file.body)).collect());

impl DashboardFile {
    fn content_type(&self) -> &'static str {
        match self.name.rsplit_once('.') {
            Some((_, "html")) => "text/html; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => "text/javascript; charset=utf-8",
        }
    }
}

pub fn page(call: &AdminRequest) -> FullResponse {
    let number = FILES.iter().position(|file| file.name == PAGE).expect("the page is in the list");
    show(number, call.headers())
}

pub fn file(call: &AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let name = call.path_parameter.as_str();
    let number = FILES.iter().position(|file| file.name == name && name != PAGE);
    let missing =
        || ProblemDetails::new(StatusCode::NOT_FOUND, format!("the dashboard has no file '{name}'"));
    number.map(|number| show(number, call.headers())).ok_or_else(missing)
}

fn show(number: usize, request: &HeaderMap) -> FullResponse {
    let file = &FILES[number];
    let tag = &ETAGS[number];
    let known = request.get_all(IF_NONE_MATCH).iter().any(|known| known == tag);
    let body = if known { Bytes::new() } else { Bytes::from_static(file.body) };
    let mut answer = Response::new(Full::new(body));
    if known {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    // The page is never stored; the other files are, and compared by their tag at each use.
    let caching = if file.name == PAGE { "no-store" } else { "no-cache" };
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
    headers.insert(ETAG, tag.clone());
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    answer
}

fn etag(body: &[u8]) -> HeaderValue {
    let hash = digest(&SHA256, body);
    let hex: String = hash.as_ref()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{hex}\"")).expect("hex digits fit a header")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard");
        let entries = std::fs::read_dir(folder).expect("the folder can be listed");
        let found: BTreeSet<String> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        let embedded: BTreeSet<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(embedded, found);
    }

    /// Trusted types make a browser throw here; this fails earlier.
    #[test]
    fn no_script_makes_markup_from_text_or_keeps_the_token() {
        let forbidden = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
            "sessionStorage",
            "document.cookie",
            "http://",
            "https://",
        ];
        for file in FILES {
            let text = std::str::from_utf8(file.body).expect("text");
            let allowed = ["http://www.w3.org/"]; // names of namespaces, not addresses
            let text = allowed.iter().fold(text.to_owned(), |text, name| text.replace(name, ""));
            for word in forbidden {
                assert!(!text.contains(word), "{} has {word}", file.name);
            }
            assert!(text.lines().count() <= 500, "{} is too long: split it by noun", file.name);
        }
    }
}
