//! The server from outside: the real binary, real servers and clients, some of which misbehave. One binary, so that its
//! dependencies are linked once; what measures outages runs apart, in `failures`.

mod admin;
mod algorithms;
mod bad_input;
mod callers;
mod central;
mod command_line;
mod concurrency;
mod crash;
mod decision;
mod decision_log;
mod docs;
mod envoy;
mod examples;
mod explain;
mod fleet_bans;
mod forward_auth;
mod gateways;
mod grpc;
mod jwt;
mod listeners;
mod load_balancers;
mod log;
mod memory_full;
mod metrics;
mod proxy;
mod reload;
mod resp;
mod resp_clients;
mod restart;
mod rules_db;
mod running_example;
mod settle;
mod slow_clients;
mod tracking;
