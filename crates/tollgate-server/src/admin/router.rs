//! The table of the admin listener's routes: roles and handlers.

use std::pin::Pin;
use std::sync::Arc;

use http_body_util::Either;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};

use crate::admin::health::Detail;
use crate::admin::request::AdminRequest;
use crate::admin::response::AdminResponse;
use crate::admin::{
    Admin, activity, allow, audit, bans, caller, dashboard, decisions, enforce, explain, health, keys, live,
    log, nodes, openapi, overrides, queue, ramp, rules, series, simulate, suggest, top,
};
use crate::connection::FullResponse;
use crate::metrics;
use crate::response::{self, ProblemDetails};
use crate::tokens::Role;

type ResponseFuture = Pin<Box<dyn Future<Output = Result<AdminResponse, ProblemDetails>> + Send>>;

pub struct AdminRoute {
    /// As in an `Allow` header.
    pub methods: &'static str,
    /// With at most one parameter. A `{key}` may contain slashes.
    pub path: &'static str,
    /// `None` for open routes; the caller's name is empty there, unless it has the role to read.
    pub role: Option<Role>,
    handler: fn(AdminRequest) -> ResponseFuture,
}

const fn open(
    methods: &'static str,
    path: &'static str,
    answer: fn(AdminRequest) -> ResponseFuture,
) -> AdminRoute {
    AdminRoute { methods, path, role: None, handler: answer }
}

const fn read(path: &'static str, answer: fn(AdminRequest) -> ResponseFuture) -> AdminRoute {
    AdminRoute { methods: "GET", path, role: Some(Role::Read), handler: answer }
}

const fn operate(
    methods: &'static str,
    path: &'static str,
    answer: fn(AdminRequest) -> ResponseFuture,
) -> AdminRoute {
    AdminRoute { methods, path, role: Some(Role::Operate), handler: answer }
}

const fn admin(
    methods: &'static str,
    path: &'static str,
    answer: fn(AdminRequest) -> ResponseFuture,
) -> AdminRoute {
    AdminRoute { methods, path, role: Some(Role::Admin), handler: answer }
}

/// Literal paths precede those with a parameter in the same position.
pub static ROUTES: &[AdminRoute] = &[
    open("GET, HEAD", "/healthz", |call| {
        ready_response(health::health(call.gate(), call.admin.proxy.as_deref(), Detail::of(&call)))
    }),
    open("GET, HEAD", "/readyz", |call| ready_response(health::readiness(&call.admin, Detail::of(&call)))),
    open("GET, HEAD", "/", |call| ready_response(dashboard::page(&call))),
    open("GET, HEAD", "/dashboard/{file}", |call| {
        let found = dashboard::file(&call);
        buffered(std::future::ready(found))
    }),
    read("/metrics", |call| buffered(metrics_page(call))),
    read("/openapi.json", |_| ready_response(openapi::show())),
    read("/v1/caller", |call| buffered(caller::show(call))),
    read("/v1/rules", |call| buffered(rules::list(call))),
    admin("POST", "/v1/rules", |call| buffered(rules::create(call))),
    admin("POST", "/v1/rules/import", |call| buffered(rules::import(call))),
    read("/v1/rules/export", |call| Box::pin(rules::export(call))),
    read("/v1/rules/{id}", |call| buffered(rules::show(call))),
    admin("PUT", "/v1/rules/{id}", |call| buffered(rules::replace(call))),
    admin("DELETE", "/v1/rules/{id}", |call| buffered(rules::delete(call))),
    read("/v1/bans", |call| buffered(bans::list(call))),
    operate("POST", "/v1/bans", |call| buffered(bans::add(call))),
    operate("POST", "/v1/bans/import", |call| buffered(bans::import(call))),
    operate("DELETE", "/v1/bans/{key}", |call| buffered(bans::remove(call))),
    read("/v1/allow", |call| buffered(allow::list(call))),
    admin("POST", "/v1/allow", |call| buffered(allow::add(call))),
    admin("DELETE", "/v1/allow/{key}", |call| buffered(allow::remove(call))),
    read("/v1/overrides", |call| buffered(overrides::list(call))),
    admin("POST", "/v1/overrides", |call| buffered(overrides::add(call))),
    admin("DELETE", "/v1/overrides", |call| buffered(overrides::remove(call))),
    read("/v1/enforce", |call| buffered(enforce::show(call))),
    admin("PUT", "/v1/enforce", |call| buffered(enforce::set(call))),
    read("/v1/ramp", |call| buffered(ramp::show(call))),
    admin("DELETE", "/v1/ramp", |call| buffered(ramp::stop(call))),
    admin("POST", "/v1/ramp/finish", |call| buffered(ramp::finish(call))),
    read("/v1/log", |call| buffered(log::show(call))),
    operate("PUT", "/v1/log", |call| buffered(log::set(call))),
    AdminRoute {
        methods: "POST",
        path: "/v1/explain",
        role: Some(Role::Read),
        handler: |call| buffered(explain::explain(call)),
    },
    read("/v1/keys", |call| buffered(keys::show(call))),
    operate("DELETE", "/v1/keys", |call| buffered(keys::reset(call))),
    read("/v1/live", |call| Box::pin(live::show(call))),
    read("/v1/series", |call| buffered(series::show(call))),
    read("/v1/top", |call| buffered(top::list(call))),
    read("/v1/activity", |call| buffered(activity::list(call))),
    read("/v1/decisions", |call| buffered(decisions::list(call))),
    read("/v1/nodes", |call| buffered(nodes::list(call))),
    read("/v1/suggest", |call| buffered(suggest::suggest(call))),
    AdminRoute {
        methods: "POST",
        path: "/v1/simulate",
        role: Some(Role::Read),
        handler: |call| buffered(simulate::simulate(call)),
    },
    read("/v1/audit", |call| buffered(audit::list(call))),
    admin("POST", "/v1/audit/{version}/rollback", |call| buffered(audit::rollback(call))),
    read("/v1/queue", |call| buffered(queue::list(call))),
    read("/v1/queue/{id}", |call| buffered(queue::show(call))),
    operate("DELETE", "/v1/queue/{id}", |call| buffered(queue::remove(call))),
    operate("POST", "/v1/queue/{id}/retry", |call| buffered(queue::retry(call))),
];

fn ready_response(answer: FullResponse) -> ResponseFuture {
    buffered(std::future::ready(Ok(answer)))
}

fn buffered(
    answering: impl Future<Output = Result<FullResponse, ProblemDetails>> + Send + 'static,
) -> ResponseFuture {
    Box::pin(async { answering.await.map(|answer| answer.map(Either::Left)) })
}

async fn metrics_page(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let page = metrics::write(&call.admin.gate, call.admin.proxy.as_ref()).await;
    Ok(response::text(StatusCode::OK, metrics::CONTENT_TYPE, page))
}

/// Dispatches a call to its route, if the caller is authorized.
pub async fn route(admin: Arc<Admin>, request: Request<Incoming>) -> Result<AdminResponse, ProblemDetails> {
    let path = request.uri().path();
    let there: Vec<_> = ROUTES.iter().filter_map(|route| Some((route, route.match_path(path)?))).collect();
    let takes =
        |route: &AdminRoute| route.methods.split(", ").any(|method| method == request.method().as_str());
    let Some((route, name)) = there.iter().find(|(route, _)| takes(route)) else {
        let is_public = there.iter().any(|(route, _)| route.role.is_none());
        if !is_public {
            admin.authorize(&request, Role::Read)?;
        }
        let allow: Vec<_> = there.iter().map(|(route, _)| route.methods).collect();
        return Err(match allow.is_empty() {
            true => ProblemDetails::not_found(path),
            false => ProblemDetails::method_not_allowed(allow.join(", ")),
        });
    };
    let caller = match route.role {
        Some(role) => admin.authorize(&request, role)?,
        None => admin.reader_name(&request),
    };
    let name = (*name).to_owned();
    (route.handler)(AdminRequest::new(admin, caller, name, request)).await
}

impl AdminRoute {
    /// The value of the route's parameter in a path, if the path matches.
    fn match_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Some((before, rest)) = self.path.split_once('{') else {
            return (self.path == path).then_some("");
        };
        let (parameter, after) = rest.split_once('}')?;
        let name = path.strip_prefix(before)?.strip_suffix(after)?;
        let fits = !name.is_empty() && (parameter == "key" || !name.contains('/'));
        fits.then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_distinguished_from_its_parameter() {
        let name = |pattern: &'static str, path: &'static str| {
            open("GET", pattern, |call| ready_response(health::health(call.gate(), None, Detail::None)))
                .match_path(path)
        };
        assert_eq!(name("/v1/rules", "/v1/rules"), Some(""));
        assert_eq!(name("/v1/rules", "/v1/rules/"), None);
        assert_eq!(name("/v1/rules/{id}", "/v1/rules/a"), Some("a"));
        assert_eq!(name("/v1/rules/{id}", "/v1/rules/"), None);
        assert_eq!(name("/v1/rules/{id}", "/v1/rules/a/b"), None);
        assert_eq!(name("/v1/bans/{key}", "/v1/bans/ip:10.0.0.0/8"), Some("ip:10.0.0.0/8"));
        assert_eq!(name("/v1/audit/{version}/rollback", "/v1/audit/0-1/rollback"), Some("0-1"));
        assert_eq!(name("/v1/audit/{version}/rollback", "/v1/audit/rollback"), None);
    }
}
