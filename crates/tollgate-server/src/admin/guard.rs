//! Authorization of the admin API.

use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderMap;

use crate::admin::Admin;
use crate::caller_auth::{self, RefusedCaller};
use crate::response::ProblemDetails;
use crate::tokens::Role;

/// The name of any caller where there are no tokens.
const LOCAL: &str = "local";

impl Admin {
    /// The name of the caller, if the call is allowed; otherwise the refusal, which is logged.
    pub(super) fn authorize(
        &self,
        request: &Request<Incoming>,
        needed: Role,
    ) -> Result<String, ProblemDetails> {
        self.check_caller(request, needed).map_err(|refused| {
            caller_auth::log_refused(&self.refusals, "admin", request, &refused);
            refused.problem
        })
    }

    /// The name of the caller if it has the role to read; empty for others on an open route.
    pub(super) fn reader_name(&self, request: &Request<Incoming>) -> String {
        self.check_caller(request, Role::Read).unwrap_or_default()
    }

    /// The highest role of a caller that may read.
    pub(super) fn role(&self, headers: &HeaderMap) -> Role {
        let roles = [Role::Admin, Role::Operate];
        let has = |role: &Role| match &self.tokens {
            Some(tokens) => caller_auth::authorize_token(tokens, headers, *role).is_ok(),
            None => true,
        };
        roles.into_iter().find(has).unwrap_or(Role::Read)
    }

    fn check_caller(&self, request: &Request<Incoming>, needed: Role) -> Result<String, RefusedCaller> {
        match &self.tokens {
            Some(tokens) => caller_auth::authorize_token(tokens, request.headers(), needed),
            None => {
                let local = caller_auth::authorize_local(request.uri().authority(), request.headers());
                local.map(|()| LOCAL.to_owned())
            }
        }
    }
}
