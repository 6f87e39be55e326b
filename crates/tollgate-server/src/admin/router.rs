//! Every route of the admin address: who may call it, and what answers.

use std::pin::Pin;
use std::sync::Arc;

use http_body_util::Either;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};

use crate::admin::call::Call;
use crate::admin::health::Detail;
use crate::admin::reply::Reply;
use crate::admin::{
    Admin, allow, audit, bans, enforce, health, keys, openapi, overrides, page, queue, rules,
};
use crate::answer::{self, Problem};
use crate::connection::Answer;
use crate::metrics;
use crate::tokens::Role;

type Answering = Pin<Box<dyn Future<Output = Result<Reply, Problem>> + Send>>;

pub struct Route {
    /// As in an `Allow` header.
    pub methods: &'static str,
    /// With at most one parameter. A `{key}` may have slashes in it.
    pub path: &'static str,
    /// `None` where anybody may call; `who` is empty then, unless the caller may read.
    pub role: Option<Role>,
    answer: fn(Call) -> Answering,
}

const fn open(methods: &'static str, path: &'static str, answer: fn(Call) -> Answering) -> Route {
    Route { methods, path, role: None, answer }
}

const fn read(path: &'static str, answer: fn(Call) -> Answering) -> Route {
    Route { methods: "GET", path, role: Some(Role::Read), answer }
}

const fn operate(methods: &'static str, path: &'static str, answer: fn(Call) -> Answering) -> Route {
    Route { methods, path, role: Some(Role::Operate), answer }
}

const fn admin(methods: &'static str, path: &'static str, answer: fn(Call) -> Answering) -> Route {
    Route { methods, path, role: Some(Role::Admin), answer }
}

/// What has a name of its own comes before a parameter in the same place.
pub static ROUTES: &[Route] = &[
    open("GET, HEAD", "/healthz", |call| now(health::health(call.gate(), Detail::of(&call)))),
    open("GET, HEAD", "/readyz", |call| now(health::readiness(&call.admin, Detail::of(&call)))),
    Route {
        methods: "GET, HEAD",
        path: "/",
        role: Some(Role::Read),
        answer: |call| now(page::show(call.gate())),
    },
    read("/metrics", |call| now(metrics_page(&call))),
    read("/openapi.json", |_| now(openapi::show())),
    read("/v1/rules", |call| whole(rules::list(call))),
    admin("POST", "/v1/rules", |call| whole(rules::create(call))),
    admin("POST", "/v1/rules/import", |call| whole(rules::import(call))),
    read("/v1/rules/export", |call| Box::pin(rules::export(call))),
    read("/v1/rules/{id}", |call| whole(rules::show(call))),
    admin("PUT", "/v1/rules/{id}", |call| whole(rules::replace(call))),
    admin("DELETE", "/v1/rules/{id}", |call| whole(rules::delete(call))),
    read("/v1/bans", |call| whole(bans::list(call))),
    operate("POST", "/v1/bans", |call| whole(bans::add(call))),
    operate("POST", "/v1/bans/import", |call| whole(bans::import(call))),
    operate("DELETE", "/v1/bans/{key}", |call| whole(bans::remove(call))),
    read("/v1/allow", |call| whole(allow::list(call))),
    admin("POST", "/v1/allow", |call| whole(allow::add(call))),
    admin("DELETE", "/v1/allow/{key}", |call| whole(allow::remove(call))),
    read("/v1/overrides", |call| whole(overrides::list(call))),
    admin("POST", "/v1/overrides", |call| whole(overrides::add(call))),
    admin("DELETE", "/v1/overrides", |call| whole(overrides::remove(call))),
    read("/v1/enforce", |call| whole(enforce::show(call))),
    admin("PUT", "/v1/enforce", |call| whole(enforce::turn(call))),
    read("/v1/keys", |call| whole(keys::show(call))),
    operate("DELETE", "/v1/keys", |call| whole(keys::reset(call))),
    read("/v1/audit", |call| whole(audit::list(call))),
    admin("POST", "/v1/audit/{version}/rollback", |call| whole(audit::rollback(call))),
    read("/v1/queue", |call| whole(queue::list(call))),
    read("/v1/queue/{id}", |call| whole(queue::show(call))),
    operate("DELETE", "/v1/queue/{id}", |call| whole(queue::remove(call))),
    operate("POST", "/v1/queue/{id}/retry", |call| whole(queue::retry(call))),
];

fn now(answer: Answer) -> Answering {
    whole(std::future::ready(Ok(answer)))
}

fn whole(answering: impl Future<Output = Result<Answer, Problem>> + Send + 'static) -> Answering {
    Box::pin(async { answering.await.map(|answer| answer.map(Either::Left)) })
}

fn metrics_page(call: &Call) -> Answer {
    let page = metrics::write(call.gate(), call.admin.proxy.as_deref());
    answer::text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
}

/// Answers a call by its route, if the caller may.
pub async fn route(admin: Arc<Admin>, request: Request<Incoming>) -> Result<Reply, Problem> {
    let path = request.uri().path();
    let there: Vec<_> = ROUTES.iter().filter_map(|route| Some((route, route.name_in(path)?))).collect();
    let takes = |route: &Route| route.methods.split(", ").any(|method| method == request.method().as_str());
    let Some((route, name)) = there.iter().find(|(route, _)| takes(route)) else {
        let anybody = there.iter().any(|(route, _)| route.role.is_none());
        if !anybody {
            admin.guard(&request, Role::Read)?;
        }
        let allow: Vec<_> = there.iter().map(|(route, _)| route.methods).collect();
        return Err(match allow.is_empty() {
            true => Problem::not_found(path),
            false => Problem::method(allow.join(", ")),
        });
    };
    let who = match route.role {
        Some(role) => admin.guard(&request, role)?,
        None => admin.reader(&request),
    };
    let name = (*name).to_owned();
    (route.answer)(Call::new(admin, who, name, request)).await
}

impl Route {
    /// What a path has in the place of the route's parameter, if it is the route's.
    fn name_in<'p>(&self, path: &'p str) -> Option<&'p str> {
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
    fn a_path_is_told_apart_from_its_parameter() {
        let name = |pattern: &'static str, path: &'static str| {
            open("GET", pattern, |call| now(health::health(call.gate(), Detail::None))).name_in(path)
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
