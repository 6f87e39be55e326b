//! The rivals, as published.

mod gcra;
mod governor;
mod limitador;
mod pingora;
mod quota;
mod throttlecrab;
mod trypema;

pub use gcra::Gcra;
pub use governor::Governor;
pub use limitador::Limitador;
pub use pingora::Pingora;
pub use quota::Quota;
pub use throttlecrab::Throttlecrab;
pub use trypema::Trypema;
