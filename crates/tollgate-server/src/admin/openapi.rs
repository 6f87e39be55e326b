//! `/openapi.json`: requests and responses of both APIs, written by hand and tested against the table of routes.

use hyper::StatusCode;

use crate::connection::FullResponse;
use crate::response;

const DESCRIPTION: &str = include_str!("openapi.json");

pub fn show() -> FullResponse {
    response::text(StatusCode::OK, "application/json", DESCRIPTION.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::Value;

    use super::*;
    use crate::admin::router::ROUTES;
    use crate::tokens::Role;
    use crate::transport::http;

    const METHODS: [&str; 4] = ["get", "post", "put", "delete"];

    fn description() -> Value {
        serde_json::from_str(DESCRIPTION).expect("it is JSON")
    }

    /// The operations by method and path.
    fn operations(description: &Value) -> BTreeMap<(String, String), &Value> {
        let paths = description["paths"].as_object().expect("paths");
        let operations = paths.iter().flat_map(|(path, methods)| {
            METHODS.iter().filter_map(move |method| {
                Some(((method.to_uppercase(), path.clone()), methods.get(*method)?))
            })
        });
        operations.collect()
    }

    #[test]
    fn every_route_is_described_with_its_role_and_nothing_else_is() {
        let description = description();
        let described = operations(&description);
        let mut routes = BTreeMap::new();
        for route in ROUTES {
            for method in route.methods.split(", ").filter(|method| *method != "HEAD") {
                routes.insert((method.to_owned(), route.path.to_owned()), route.role.map(Role::name));
            }
        }
        for (method, path) in http::ROUTES {
            routes.insert((method.to_owned(), path.to_owned()), None);
        }
        let roles: BTreeMap<_, _> = described
            .into_iter()
            .map(|(route, operation)| (route, operation.get("x-role").and_then(Value::as_str)))
            .collect();
        assert_eq!(roles, routes);
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_component_is_used() {
        fn collect<'d>(value: &'d Value, found: &mut BTreeSet<&'d str>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str));
                    map.values().for_each(|value| collect(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
                _ => {}
            }
        }
        let description = description();
        let mut found = BTreeSet::new();
        collect(&description, &mut found);
        for reference in &found {
            let pointer = reference.strip_prefix('#').expect("references stay in the document");
            assert!(description.pointer(pointer).is_some(), "{reference}");
        }
        for kind in ["schemas", "parameters", "responses", "headers"] {
            for name in description["components"][kind].as_object().expect("components").keys() {
                let reference = format!("#/components/{kind}/{name}");
                assert!(found.contains(reference.as_str()), "nothing uses {reference}");
            }
        }
    }

    #[test]
    fn a_parameter_of_a_path_is_described_and_an_edit_takes_a_dry_run() {
        let description = description();
        for ((method, path), operation) in operations(&description) {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let named = |name: &str| parameters.iter().any(|parameter| parameter["name"] == name);
            if let Some((name, _)) = path.split_once('{').and_then(|(_, rest)| rest.split_once('}')) {
                assert!(named(name), "{method} {path} lacks {name}");
            }
            let edits = method != "GET" && !path.starts_with("/v1/queue") && !path.starts_with("/v1/keys");
            let dry_run =
                parameters.iter().any(|parameter| parameter["$ref"] == "#/components/parameters/dry_run");
            let decides = operation["tags"][0] == "decisions";
            assert_eq!(dry_run, edits && !decides, "{method} {path}");
            assert!(
                operation["summary"].is_string() && operation["responses"]["200"].is_object(),
                "{method} {path}"
            );
        }
    }
}
