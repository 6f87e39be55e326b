//! A socket that is bound but not listening yet, so that an invalid address is an error at the start.

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpSocket, UnixListener, UnixSocket};

use crate::cli::startup_check;
use crate::config::ListenAddress;
use crate::connection::{BACKLOG, ListenSocket, tcp_socket};

pub struct BoundSocket {
    pub name: &'static str,
    pub address: ListenAddress,
    socket: Bound,
}

enum Bound {
    Tcp(TcpSocket),
    Unix(UnixSocket, SocketFile),
}

/// The file of a Unix socket, removed on drop unless another process has replaced it.
pub struct SocketFile {
    path: PathBuf,
    inode: Option<u64>,
}

impl SocketFile {
    fn of(path: &Path) -> SocketFile {
        SocketFile { path: path.to_owned(), inode: inode(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path) == self.inode {
            fs::remove_file(&self.path).ok();
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|file| file.ino())
}

impl BoundSocket {
    pub fn at(
        name: &'static str,
        address: Option<&ListenAddress>,
        unix_mode: u32,
    ) -> anyhow::Result<Option<BoundSocket>> {
        let Some(address) = address.cloned() else { return Ok(None) };
        let socket = match &address {
            ListenAddress::Tcp(address) => bind_tcp(*address).map(Bound::Tcp),
            ListenAddress::Unix(path) => bind_unix(path, unix_mode),
        };
        let socket = socket.map_err(|error| cannot_listen(&address, name, error))?;
        Ok(Some(BoundSocket { name, address, socket }))
    }

    /// The address as it is shown: with the port that a port of 0 has become.
    pub fn shown_address(&self) -> io::Result<String> {
        match &self.socket {
            Bound::Tcp(socket) => socket.local_addr().map(|address| address.to_string()),
            Bound::Unix(..) => Ok(self.address.to_string()),
        }
    }

    /// Listens; the file of a Unix socket is to be kept until the end.
    pub fn listen(self) -> anyhow::Result<(ListenSocket, Option<SocketFile>)> {
        let shown = self.shown_address()?;
        let name = self.name;
        let listening = match self.socket {
            Bound::Tcp(socket) => socket.listen(BACKLOG).map(|socket| (ListenSocket::Tcp(socket), None)),
            Bound::Unix(socket, file) => {
                let listening: io::Result<UnixListener> = socket.listen(BACKLOG);
                listening.map(|socket| (ListenSocket::Unix(socket), Some(file)))
            }
        };
        let listening = listening.map_err(|error| cannot_listen(&shown, name, error))?;
        tracing::info!("{name} listens on {shown}");
        Ok(listening)
    }
}

/// Keeps the I/O error as the source: `unless_busy` looks for an address that is in use.
fn cannot_listen(address: &impl Display, name: &str, error: io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => ", another process has it (`ss -ltnp` shows which)",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot listen on {address} for {name}{hint}"))
}

/// Why an address can never be bound, as far as that is known without binding it.
pub fn check(address: &ListenAddress) -> Result<(), String> {
    match address {
        ListenAddress::Tcp(address) => check_tcp(*address),
        ListenAddress::Unix(path) => match fs::symlink_metadata(path) {
            Ok(file) if !file.file_type().is_socket() => {
                Err(format!("{} exists and is not a socket", path.display()))
            }
            _ => startup_check::creatable(path),
        },
    }
}

/// Binds any free port of UDP in place of the one of TCP, which may be in use by the running node.
fn check_tcp(address: SocketAddr) -> Result<(), String> {
    let mut probe = address;
    probe.set_port(0);
    match UdpSocket::bind(probe) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Err(format!(
            "{} is not an address of this machine: see `ip addr`, or write 0.0.0.0 for all of them",
            address.ip()
        )),
        Err(error) if is_unsupported(&error) => Err(format!("{address} cannot be used here: {error}")),
        _ => Ok(()),
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::INVAL))
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = tcp_socket(address)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Binds a Unix socket. The file of one that nothing listens on is replaced; other files are never removed.
fn bind_unix(path: &Path, mode: u32) -> io::Result<Bound> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists and is not a socket"));
        }
        Ok(_) => remove_if_stale(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let file = SocketFile::of(path);
    // Before it listens, so that no process connects under other permissions.
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(Bound::Unix(socket, file))
}

/// Removes the file of a socket if a connection to it is refused.
fn remove_if_stale(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}
