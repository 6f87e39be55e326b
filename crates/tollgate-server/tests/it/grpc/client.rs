//! A client of the listener, over tonic.

use std::net::SocketAddr;

use tokio::runtime::Runtime;
use tonic::Status;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::messages::{DescriptorStatus, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub const OK: i32 = 1;
pub const OVER_LIMIT: i32 = 2;

pub struct GrpcClient {
    pub runtime: Runtime,
    pub channel: Channel,
    pub token: Option<String>,
    pub traceparent: Option<&'static str>,
}

impl GrpcClient {
    pub fn to(address: SocketAddr) -> GrpcClient {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
        let channel = runtime.block_on(channel.connect()).expect("the listener accepts");
        GrpcClient { runtime, channel, token: None, traceparent: None }
    }

    pub fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut request = tonic::Request::new(message);
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse().expect("a header");
            request.metadata_mut().insert("authorization", value);
        }
        if let Some(traceparent) = self.traceparent {
            request.metadata_mut().insert("traceparent", traceparent.parse().expect("a header"));
        }
        self.runtime.block_on(async {
            let mut client = tonic::client::Grpc::new(self.channel.clone());
            client.ready().await.expect("connected");
            let codec: ProstCodec<Q, A> = ProstCodec::default();
            let answer = client.unary(request, PathAndQuery::from_static(path), codec).await?;
            Ok(answer.into_inner())
        })
    }

    pub fn limit(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.call(SHOULD_RATE_LIMIT, request)
    }

    /// The status of a request with one descriptor.
    pub fn single(&self, domain: &str, entries: &[(&str, &str)]) -> DescriptorStatus {
        let answer = self.limit(request(domain, &[entries])).expect("an answer");
        assert_eq!(answer.overall_code, answer.statuses[0].code);
        answer.statuses[0].clone()
    }

    /// The codes of all descriptors of a request, and what remains for each.
    pub fn codes(&self, domain: &str, descriptors: &[&[(&str, &str)]]) -> Vec<(i32, u32)> {
        let answer = self.limit(request(domain, descriptors)).expect("an answer");
        answer.statuses.iter().map(|status| (status.code, status.limit_remaining)).collect()
    }
}

pub fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}

pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}
