//! Calls an API with reqwest, and stays under its limits.
//!
//!     cargo run -p tollgate-server --example reqwest -- http://127.0.0.1:3000 20 10/s
//!
//! The arguments are the URL, the number of calls, and the limit; without a limit it is learned from the responses.

use std::error::Error;
use std::time::{Duration, Instant};

use reqwest_middleware::ClientBuilder;
use tollgate_client::{Throttle, ThrottleMiddleware};

#[tokio::main(flavor = "current_thread")]
#[allow(clippy::print_stdout)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("usage: reqwest URL CALLS [LIMIT]")?;
    let calls: usize = args.next().ok_or("usage: reqwest URL CALLS [LIMIT]")?.parse()?;

    // A call that would wait longer than a minute fails instead.
    let mut throttle = Throttle::builder().max_wait(Duration::from_secs(60));
    if let Some(limit) = args.next() {
        throttle = throttle.limit(&limit);
    }
    // A refused call is sent again, once, when the server allows it.
    let throttle = ThrottleMiddleware::new(throttle.build()?).retries(1);
    let client = ClientBuilder::new(reqwest::Client::new()).with(throttle).build();

    let started = Instant::now();
    for n in 1..=calls {
        let response = client.get(&url).send().await?;
        println!("{n} {} after {} ms", response.status().as_u16(), started.elapsed().as_millis());
    }
    Ok(())
}
