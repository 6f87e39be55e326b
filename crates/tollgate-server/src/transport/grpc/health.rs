//! `grpc.health.v1.Health`: whether calls are served, as load balancers and orchestrators ask.

use crate::connection::{Shutdown, shutdown_requested};

use super::protobuf::{DecodeError, Fields};
use super::status::{CallError, Code};
use super::stream::{Outgoing, single_varint};

pub const SERVICE: &str = "grpc.health.v1.Health";
const STATUS: u32 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ServingStatus {
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// The status of a service; the empty name stands for the whole server.
fn status(service: &str, shutdown: &Shutdown) -> ServingStatus {
    let is_known = service.is_empty() || super::SERVICES.contains(&service);
    match is_known {
        false => ServingStatus::ServiceUnknown,
        true if *shutdown.borrow() => ServingStatus::NotServing,
        true => ServingStatus::Serving,
    }
}

fn service_of(message: &[u8]) -> Result<&str, DecodeError> {
    let mut service = "";
    for field in Fields::of(message) {
        let field = field?;
        if field.number == 1 {
            service = field.text()?;
        }
    }
    Ok(service)
}

pub fn check(message: &[u8], shutdown: &Shutdown, response: &mut Outgoing) -> Result<(), CallError> {
    match status(service_of(message)?, shutdown) {
        ServingStatus::ServiceUnknown => Err(CallError::new(Code::NotFound, "there is no such service")),
        status => {
            response.send(single_varint(STATUS, status as u64)).ok();
            Ok(())
        }
    }
}

/// Sends the status, and again when it changes, which is once: at the stop.
pub async fn watch(message: &[u8], mut shutdown: Shutdown, response: &mut Outgoing) -> Result<(), CallError> {
    let service = service_of(message)?.to_owned();
    let now = status(&service, &shutdown);
    if response.send(single_varint(STATUS, now as u64)).is_err() {
        return Ok(());
    }
    tokio::select! {
        () = response.closed() => return Ok(()),
        () = shutdown_requested(&mut shutdown) => {}
    }
    let last = status(&service, &shutdown);
    if last != now {
        response.send(single_varint(STATUS, last as u64)).ok();
    }
    Ok(())
}
