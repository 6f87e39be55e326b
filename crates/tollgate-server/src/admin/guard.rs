//! Who may call what of the admin API.

use hyper::Request;
use hyper::body::Incoming;

use crate::admin::Admin;
use crate::answer::Problem;
use crate::guard::{self, Refused};
use crate::tokens::Role;

/// Whoever calls where there are no tokens.
const LOCAL: &str = "local";

impl Admin {
    /// The name of the caller, if the call is allowed; else the refusal, which is logged.
    pub(super) fn guard(&self, request: &Request<Incoming>, needed: Role) -> Result<String, Problem> {
        self.judge(request, needed).map(str::to_owned).map_err(|refused| {
            guard::log_refused(&self.refusals, "admin", request, &refused);
            refused.1
        })
    }

    /// The name of the caller where it may read; empty for those whom an open route serves, too.
    pub(super) fn reader(&self, request: &Request<Incoming>) -> String {
        self.judge(request, Role::Read).map_or_else(|_| String::new(), str::to_owned)
    }

    fn judge(&self, request: &Request<Incoming>, needed: Role) -> Result<&str, Refused<'_>> {
        match &self.tokens {
            Some(tokens) => guard::by_token(tokens, request.headers(), needed),
            None => guard::by_origin(request.uri().authority(), request.headers()).map(|()| LOCAL),
        }
    }
}
