//! A tonic server behind Tollgate's layer: ten calls a minute for each client. A denied call is `RESOURCE_EXHAUSTED`,
//! with the time to wait in its details (`google.rpc.RetryInfo`).
//!
//!     cargo run -p tollgate-tower --features tonic --example tonic -- 127.0.0.1:50051

use std::error::Error;

use tollgate_tower::RateLimitLayer;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:50051".to_owned());
    let incoming = TcpIncoming::bind(address.parse()?)?;
    eprintln!("listening on http://{address}");
    serve(incoming).await
}

pub async fn serve(incoming: TcpIncoming) -> Result<(), Box<dyn Error>> {
    let limit = RateLimitLayer::limit("10/m")?;
    let (_, health) = tonic_health::server::health_reporter(); // in place of your own services
    Server::builder().layer(limit).add_service(health).serve_with_incoming(incoming).await?;
    Ok(())
}
