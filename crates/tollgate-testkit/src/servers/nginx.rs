//! A real nginx, on free ports and in a folder of its own.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::{Folder, eventually, find, not_run};

#[derive(Debug)]
pub struct Nginx(Child);

impl Nginx {
    /// Starts with the contents of `http { … }`, and returns when it listens on all of `ports`; `None`, reported, where it
    /// is not installed.
    pub fn start(what: &str, folder: &Folder, http: &str, ports: &[u16]) -> Option<Nginx> {
        let Some(program) = find("nginx") else {
            not_run(what, "no nginx; it comes with the Debian package nginx");
            return None;
        };
        let base = folder.path("");
        let base = base.display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {base}/{kind};"))
            .concat();
        let name = format!("nginx-{}", ports.first().expect("a port"));
        let text = format!(
            "daemon off; worker_processes 1; error_log {base}/{name}.err; pid {base}/{name}.pid;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; keepalive_requests 1000000; {temporary} {http} }}\n"
        );
        let path = folder.write(&format!("{name}.conf"), text);
        let mut command = Command::new(program);
        command.arg("-p").arg(folder.path("")).arg("-c").arg(path).stderr(Stdio::null());
        let nginx = Nginx(command.spawn().expect("nginx starts"));
        for port in ports {
            eventually("nginx listens", || TcpStream::connect(address(*port)).is_ok());
        }
        Some(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM, not SIGKILL: it ends its worker.
        Command::new("kill").arg(self.0.id().to_string()).status().ok();
        self.0.wait().ok();
    }
}

pub fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
