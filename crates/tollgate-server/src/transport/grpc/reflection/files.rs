//! The messages that are read and written here, as a table. Fields that are ignored are left out, so that the closure of
//! imports stays small; members of a oneof are listed as plain fields, which have the same encoding.

mod authorization;

pub struct File {
    pub name: &'static str,
    pub package: &'static str,
    pub imports: &'static [&'static str],
    pub messages: &'static [Message],
    pub enums: &'static [Enum],
    pub services: &'static [(&'static str, &'static [Method])],
}

pub struct Message {
    pub name: &'static str,
    pub fields: &'static [(u32, &'static str, Kind)],
    pub nested: &'static [Message],
    pub enums: &'static [Enum],
    pub is_map_entry: bool,
}

/// A name, and the names of the numbers from 0 on.
pub type Enum = (&'static str, &'static [&'static str]);

pub enum Kind {
    Int32,
    Int64,
    Uint32,
    Uint64,
    Bool,
    Text,
    Bytes,
    Message(&'static str),
    Enum(&'static str),
    Repeated(&'static Kind),
}

pub struct Method {
    pub name: &'static str,
    pub request: &'static str,
    pub response: &'static str,
    pub streams_requests: bool,
    pub streams_responses: bool,
}

const fn message(name: &'static str, fields: &'static [(u32, &'static str, Kind)]) -> Message {
    Message { name, fields, nested: &[], enums: &[], is_map_entry: false }
}

const fn unary(name: &'static str, request: &'static str, response: &'static str) -> Method {
    Method { name, request, response, streams_requests: false, streams_responses: false }
}

const NOTHING: File = File { name: "", package: "", imports: &[], messages: &[], enums: &[], services: &[] };

const DURATION: &str = "google/protobuf/duration.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";
const BASE: &str = "envoy/config/core/v3/base.proto";
const DESCRIPTOR: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const HEADER_VALUE: &str = ".envoy.config.core.v3.HeaderValue";
const UNIT: &str = "envoy/type/v3/ratelimit_unit.proto";

/// The units of [`UNIT`], and those of responses, which have the same numbers.
const UNITS: &[&str] = &["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];

pub const FILES: &[File] = &[
    File {
        name: DURATION,
        package: "google.protobuf",
        messages: &[message("Duration", &[(1, "seconds", Kind::Int64), (2, "nanos", Kind::Int32)])],
        ..NOTHING
    },
    File {
        name: WRAPPERS,
        package: "google.protobuf",
        messages: &[message("UInt64Value", &[(1, "value", Kind::Uint64)])],
        ..NOTHING
    },
    File { name: UNIT, package: "envoy.type.v3", enums: &[("RateLimitUnit", UNITS)], ..NOTHING },
    File {
        name: BASE,
        package: "envoy.config.core.v3",
        messages: &[
            message(
                "HeaderValue",
                &[(1, "key", Kind::Text), (2, "value", Kind::Text), (3, "raw_value", Kind::Bytes)],
            ),
            message("HeaderMap", &[(1, "headers", Kind::Repeated(&Kind::Message(HEADER_VALUE)))]),
            message(
                "HeaderValueOption",
                &[(1, "header", Kind::Message(HEADER_VALUE)), (3, "append_action", Kind::Int32)],
            ),
        ],
        ..NOTHING
    },
    File {
        name: DESCRIPTOR,
        package: "envoy.extensions.common.ratelimit.v3",
        imports: &[UNIT, WRAPPERS],
        messages: &[Message {
            nested: &[
                message("Entry", &[(1, "key", Kind::Text), (2, "value", Kind::Text)]),
                message(
                    "RateLimitOverride",
                    &[
                        (1, "requests_per_unit", Kind::Uint32),
                        (2, "unit", Kind::Enum(".envoy.type.v3.RateLimitUnit")),
                    ],
                ),
            ],
            ..message(
                "RateLimitDescriptor",
                &[
                    (
                        1,
                        "entries",
                        Kind::Repeated(&Kind::Message(concat!(
                            ".envoy.extensions.common.ratelimit.v3.",
                            "RateLimitDescriptor.Entry"
                        ))),
                    ),
                    (
                        2,
                        "limit",
                        Kind::Message(
                            ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride",
                        ),
                    ),
                    (3, "hits_addend", Kind::Message(".google.protobuf.UInt64Value")),
                    (4, "is_negative_hits", Kind::Bool),
                ],
            )
        }],
        ..NOTHING
    },
    RATE_LIMIT,
    authorization::ADDRESS,
    authorization::AUTHORIZATION,
    HEALTH,
    reflection("grpc/reflection/v1/reflection.proto", "grpc.reflection.v1", REFLECTION, REFLECTION_SERVICE),
    reflection(
        "grpc/reflection/v1alpha/reflection.proto",
        "grpc.reflection.v1alpha",
        REFLECTION_ALPHA,
        REFLECTION_SERVICE_ALPHA,
    ),
];

const RATE_LIMIT: File = File {
    name: "envoy/service/ratelimit/v3/rls.proto",
    package: "envoy.service.ratelimit.v3",
    imports: &[BASE, DESCRIPTOR, DURATION],
    messages: &[
        message(
            "RateLimitRequest",
            &[
                (1, "domain", Kind::Text),
                (
                    2,
                    "descriptors",
                    Kind::Repeated(&Kind::Message(
                        ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
                    )),
                ),
                (3, "hits_addend", Kind::Uint32),
            ],
        ),
        Message {
            nested: &[
                Message {
                    enums: &[("Unit", UNITS)],
                    ..message(
                        "RateLimit",
                        &[
                            (1, "requests_per_unit", Kind::Uint32),
                            (
                                2,
                                "unit",
                                Kind::Enum(".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit"),
                            ),
                            (3, "name", Kind::Text),
                        ],
                    )
                },
                message(
                    "DescriptorStatus",
                    &[
                        (1, "code", Kind::Enum(".envoy.service.ratelimit.v3.RateLimitResponse.Code")),
                        (
                            2,
                            "current_limit",
                            Kind::Message(".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit"),
                        ),
                        (3, "limit_remaining", Kind::Uint32),
                        (4, "duration_until_reset", Kind::Message(".google.protobuf.Duration")),
                    ],
                ),
            ],
            enums: &[("Code", &["UNKNOWN", "OK", "OVER_LIMIT"])],
            ..message(
                "RateLimitResponse",
                &[
                    (1, "overall_code", Kind::Enum(".envoy.service.ratelimit.v3.RateLimitResponse.Code")),
                    (
                        2,
                        "statuses",
                        Kind::Repeated(&Kind::Message(
                            ".envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
                        )),
                    ),
                    (3, "response_headers_to_add", Kind::Repeated(&Kind::Message(HEADER_VALUE))),
                    (5, "raw_body", Kind::Bytes),
                ],
            )
        },
    ],
    services: &[(
        "RateLimitService",
        &[unary(
            "ShouldRateLimit",
            ".envoy.service.ratelimit.v3.RateLimitRequest",
            ".envoy.service.ratelimit.v3.RateLimitResponse",
        )],
    )],
    ..NOTHING
};

const HEALTH_REQUEST: &str = ".grpc.health.v1.HealthCheckRequest";
const HEALTH_RESPONSE: &str = ".grpc.health.v1.HealthCheckResponse";

const HEALTH: File = File {
    name: "grpc/health/v1/health.proto",
    package: "grpc.health.v1",
    messages: &[
        message("HealthCheckRequest", &[(1, "service", Kind::Text)]),
        Message {
            enums: &[("ServingStatus", &["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"])],
            ..message(
                "HealthCheckResponse",
                &[(1, "status", Kind::Enum(".grpc.health.v1.HealthCheckResponse.ServingStatus"))],
            )
        },
    ],
    services: &[(
        "Health",
        &[
            unary("Check", HEALTH_REQUEST, HEALTH_RESPONSE),
            Method { streams_responses: true, ..unary("Watch", HEALTH_REQUEST, HEALTH_RESPONSE) },
        ],
    )],
    ..NOTHING
};

type Services = &'static [(&'static str, &'static [Method])];

const fn reflection(
    name: &'static str,
    package: &'static str,
    messages: &'static [Message],
    services: Services,
) -> File {
    File { name, package, messages, services, ..NOTHING }
}

/// The messages of a version of reflection.
macro_rules! reflection_messages {
    ($package:literal) => {
        &[
            message(
                "ServerReflectionRequest",
                &[
                    (1, "host", Kind::Text),
                    (3, "file_by_filename", Kind::Text),
                    (4, "file_containing_symbol", Kind::Text),
                    (7, "list_services", Kind::Text),
                ],
            ),
            message(
                "ServerReflectionResponse",
                &[
                    (1, "valid_host", Kind::Text),
                    (2, "original_request", Kind::Message(concat!($package, ".ServerReflectionRequest"))),
                    (
                        4,
                        "file_descriptor_response",
                        Kind::Message(concat!($package, ".FileDescriptorResponse")),
                    ),
                    (6, "list_services_response", Kind::Message(concat!($package, ".ListServiceResponse"))),
                    (7, "error_response", Kind::Message(concat!($package, ".ErrorResponse"))),
                ],
            ),
            message("FileDescriptorResponse", &[(1, "file_descriptor_proto", Kind::Repeated(&Kind::Bytes))]),
            message(
                "ListServiceResponse",
                &[(1, "service", Kind::Repeated(&Kind::Message(concat!($package, ".ServiceResponse"))))],
            ),
            message("ServiceResponse", &[(1, "name", Kind::Text)]),
            message("ErrorResponse", &[(1, "error_code", Kind::Int32), (2, "error_message", Kind::Text)]),
        ]
    };
}

macro_rules! reflection_services {
    ($package:literal) => {
        &[(
            "ServerReflection",
            &[Method {
                streams_requests: true,
                streams_responses: true,
                ..unary(
                    "ServerReflectionInfo",
                    concat!($package, ".ServerReflectionRequest"),
                    concat!($package, ".ServerReflectionResponse"),
                )
            }],
        )]
    };
}

const REFLECTION: &[Message] = reflection_messages!(".grpc.reflection.v1");
const REFLECTION_ALPHA: &[Message] = reflection_messages!(".grpc.reflection.v1alpha");
const REFLECTION_SERVICE: Services = reflection_services!(".grpc.reflection.v1");
const REFLECTION_SERVICE_ALPHA: Services = reflection_services!(".grpc.reflection.v1alpha");
