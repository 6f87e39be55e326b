//! A real nginx, on free ports and in a folder of its own.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::harness::{Folder, eventually};

pub struct Nginx(Child);

impl Nginx {
    /// Starts with what `http { … }` is to say, and returns when it listens on all of `ports`.
    pub fn start(folder: &Folder, http: &str, ports: &[u16]) -> Nginx {
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
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path("")).arg("-c").arg(path).stderr(Stdio::null());
        let nginx = Nginx(command.spawn().expect("nginx is installed"));
        for port in ports {
            eventually("nginx listens", || TcpStream::connect(address(*port)).is_ok());
        }
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Told to stop rather than killed: its worker goes with it.
        Command::new("kill").arg(self.0.id().to_string()).status().ok();
        self.0.wait().ok();
    }
}

pub fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
