//! The messages of external authorization. In Envoy's own files they are spread over more of them.

use super::{BASE, File, Kind, Message, NOTHING, message, unary};

const ADDRESS_FILE: &str = "envoy/config/core/v3/address.proto";

pub const ADDRESS: File = File {
    name: ADDRESS_FILE,
    package: "envoy.config.core.v3",
    messages: &[
        message("SocketAddress", &[(2, "address", Kind::Text), (3, "port_value", Kind::Uint32)]),
        message("Address", &[(1, "socket_address", Kind::Message(".envoy.config.core.v3.SocketAddress"))]),
    ],
    ..NOTHING
};

const CONTEXT: &str = ".envoy.service.auth.v3.AttributeContext";
const OPTIONS: Kind = Kind::Repeated(&Kind::Message(".envoy.config.core.v3.HeaderValueOption"));

const HTTP_REQUEST: Message = Message {
    nested: &[Message {
        is_map_entry: true,
        ..message("HeadersEntry", &[(1, "key", Kind::Text), (2, "value", Kind::Text)])
    }],
    ..message(
        "HttpRequest",
        &[
            (2, "method", Kind::Text),
            (
                3,
                "headers",
                Kind::Repeated(&Kind::Message(
                    ".envoy.service.auth.v3.AttributeContext.HttpRequest.HeadersEntry",
                )),
            ),
            (4, "path", Kind::Text),
            (5, "host", Kind::Text),
            (13, "header_map", Kind::Message(".envoy.config.core.v3.HeaderMap")),
        ],
    )
};

pub const AUTHORIZATION: File = File {
    name: "envoy/service/auth/v3/external_auth.proto",
    package: "envoy.service.auth.v3",
    imports: &[BASE, ADDRESS_FILE],
    messages: &[
        Message {
            nested: &[
                message("Peer", &[(1, "address", Kind::Message(".envoy.config.core.v3.Address"))]),
                HTTP_REQUEST,
                message(
                    "Request",
                    &[(2, "http", Kind::Message(".envoy.service.auth.v3.AttributeContext.HttpRequest"))],
                ),
            ],
            ..message(
                "AttributeContext",
                &[
                    (1, "source", Kind::Message(".envoy.service.auth.v3.AttributeContext.Peer")),
                    (4, "request", Kind::Message(".envoy.service.auth.v3.AttributeContext.Request")),
                ],
            )
        },
        message("CheckRequest", &[(1, "attributes", Kind::Message(CONTEXT))]),
        message("Status", &[(1, "code", Kind::Int32)]),
        message("HttpStatus", &[(1, "code", Kind::Int32)]),
        message(
            "DeniedHttpResponse",
            &[
                (1, "status", Kind::Message(".envoy.service.auth.v3.HttpStatus")),
                (2, "headers", OPTIONS),
                (3, "body", Kind::Text),
            ],
        ),
        message("OkHttpResponse", &[(6, "response_headers_to_add", OPTIONS)]),
        message(
            "CheckResponse",
            &[
                (1, "status", Kind::Message(".envoy.service.auth.v3.Status")),
                (2, "denied_response", Kind::Message(".envoy.service.auth.v3.DeniedHttpResponse")),
                (3, "ok_response", Kind::Message(".envoy.service.auth.v3.OkHttpResponse")),
            ],
        ),
    ],
    services: &[(
        "Authorization",
        &[unary("Check", ".envoy.service.auth.v3.CheckRequest", ".envoy.service.auth.v3.CheckResponse")],
    )],
    ..NOTHING
};
