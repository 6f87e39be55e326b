//! Who is asking: addresses and names in their normal forms.

pub mod address;
pub mod forwarded;
pub mod normal;
