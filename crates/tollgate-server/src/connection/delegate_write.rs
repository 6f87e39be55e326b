//! Writing to a stream that wraps another one and only reads differently.

/// Implements `AsyncWrite` by the stream in a field: `delegate_write!([<S: AsyncWrite + Unpin>] Wrapper<S>, stream);`
macro_rules! delegate_write {
    ([$($generics:tt)*] $wrapper:ty, $stream:ident) => {
        impl $($generics)* ::tokio::io::AsyncWrite for $wrapper {
            fn poll_write(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                buf: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.$stream).poll_write(cx, buf)
            }

            fn poll_write_vectored(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                parts: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.$stream).poll_write_vectored(cx, parts)
            }

            fn is_write_vectored(&self) -> bool {
                self.$stream.is_write_vectored()
            }

            fn poll_flush(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.$stream).poll_flush(cx)
            }

            fn poll_shutdown(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.$stream).poll_shutdown(cx)
            }
        }
    };
}

pub(crate) use delegate_write;
