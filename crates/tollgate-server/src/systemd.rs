//! Tells systemd the state of the service (`sd_notify(3)`). Has no effect without `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const SOCKET_ENV: &str = "NOTIFY_SOCKET";

/// Sends `READY=1` or `STOPPING=1`. A failure is logged: the server itself is not affected.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os(SOCKET_ENV) else { return };
    if let Err(error) = send(&name, state) {
        tracing::warn!(%error, "systemd cannot be notified of {state}");
    }
}

fn send(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &SocketAddr, name: &OsStr) {
        let socket = UnixDatagram::bind_addr(address).expect("a socket");
        send(name, "READY=1").expect("it is sent");
        let mut message = [0; 64];
        let length = socket.recv(&mut message).expect("it is received");
        assert_eq!(&message[..length], b"READY=1");
    }

    #[test]
    fn both_kinds_of_sockets_are_notified() {
        let name = format!("tollgate-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        check(&address, OsStr::new(&format!("@{name}")));
        let path = std::env::temp_dir().join(&name);
        check(&SocketAddr::from_pathname(&path).expect("a path"), path.as_os_str());
        std::fs::remove_file(&path).expect("the socket's file");
    }
}
