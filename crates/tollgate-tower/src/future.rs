//! The response of a limited service, as a future.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::admission::Admitted;
use crate::body::LimitedBody;

/// A decision that waits for a store or for the request's turn.
pub(crate) type PendingAdmission =
    Pin<Box<dyn Future<Output = (Parts, Result<Admitted, Response<Bytes>>)> + Send>>;

pin_project! {
    /// The response to a request: of the inner service, or a denial.
    ///
    /// Dropping it before the inner service was called refunds what was charged. Afterwards the charge remains, because
    /// the service may have done its work; concurrency permits are released in any case.
    pub struct LimitedFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, B, S::Future>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B, F> {
        Denied { response: Option<Response<Bytes>> },
        Waiting { admission: PendingAdmission, inner: S, body: Option<B> },
        Called { #[pin] future: F, admitted: Option<Admitted> },
    }
}

impl<S: Service<Request<B>>, B> LimitedFuture<S, B> {
    pub(crate) fn denied(response: Response<Bytes>) -> LimitedFuture<S, B> {
        LimitedFuture { state: State::Denied { response: Some(response) } }
    }

    pub(crate) fn waiting(admission: PendingAdmission, inner: S, body: B) -> LimitedFuture<S, B> {
        LimitedFuture { state: State::Waiting { admission, inner, body: Some(body) } }
    }

    #[inline]
    pub(crate) fn called(future: S::Future, admitted: Admitted) -> LimitedFuture<S, B> {
        LimitedFuture { state: State::Called { future, admitted: Some(admitted) } }
    }
}

impl<S, B, R> Future for LimitedFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<LimitedBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProjection::Denied { response } => {
                    let response = response.take().expect("a finished future is not polled");
                    return Poll::Ready(Ok(response.map(LimitedBody::denial)));
                }
                StateProjection::Waiting { admission, inner, body } => {
                    let (parts, admitted) = ready!(admission.as_mut().poll(context));
                    let next = match admitted {
                        Err(response) => State::Denied { response: Some(response) },
                        Ok(admitted) => {
                            let body = body.take().expect("a request is sent once");
                            let future = inner.call(Request::from_parts(parts, body));
                            State::Called { future, admitted: Some(admitted) }
                        }
                    };
                    state.set(next);
                }
                StateProjection::Called { future, admitted } => {
                    let response = ready!(future.poll(context));
                    let admitted = admitted.take().expect("a finished future is not polled");
                    return Poll::Ready(finish(response, admitted));
                }
            }
        }
    }
}

/// Settles the charges of a request, and completes its response.
#[inline]
fn finish<R, E>(response: Result<Response<R>, E>, admitted: Admitted) -> Result<Response<LimitedBody<R>>, E> {
    let Admitted { headers, open } = admitted;
    let mut response = match response {
        Ok(response) => response,
        Err(error) => {
            open.into_iter().for_each(|open| open.settle_by_error());
            return Err(error);
        }
    };
    let open = open.and_then(|open| open.settle_by_head(response.status(), response.headers()));
    if let Some(headers) = headers {
        headers.merge_into(response.headers_mut());
    }
    Ok(response.map(|body| LimitedBody::inner(body, open)))
}
