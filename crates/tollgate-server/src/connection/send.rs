//! Sending replies that were written to a buffer.

use std::future::{Future, poll_fn};
use std::io;
use std::task::Poll;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::WRITE_TIMEOUT;

/// Sends the bytes and empties the buffer, which is freed if it is larger than `kept`. A client that does not read for
/// [`WRITE_TIMEOUT`] is an error.
pub async fn send_replies<S>(stream: &mut S, replies: &mut Vec<u8>, kept: usize) -> io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    if replies.is_empty() {
        return Ok(());
    }
    {
        let send = async {
            stream.write_all(replies).await?;
            stream.flush().await
        };
        tokio::pin!(send);
        // Usually the kernel takes everything at once, and no timer is needed.
        match poll_fn(|cx| Poll::Ready(send.as_mut().poll(cx))).await {
            Poll::Ready(sent) => sent?,
            Poll::Pending => {
                timeout(WRITE_TIMEOUT, send).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))?;
            }
        }
    }
    replies.clear();
    if replies.capacity() > kept {
        *replies = Vec::new();
    }
    Ok(())
}
