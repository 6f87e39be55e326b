//! Adding an item to a `SmallVec` where it will be.
//!
//! `SmallVec::push` takes the finished item: one of a hundred bytes is made on the stack, and copied after the vector
//! has grown.

use smallvec::{Array, SmallVec};

/// Adds the item that `make` returns, which is written in place.
#[inline(always)]
pub(crate) fn push_in_place<A: Array>(items: &mut SmallVec<A>, make: impl FnOnce() -> A::Item) {
    let len = items.len();
    if len == items.capacity() {
        grow(items);
    }
    // SAFETY: there is room for one more item, and the length counts it only once it is written.
    unsafe {
        items.as_mut_ptr().add(len).write(make());
        items.set_len(len + 1);
    }
}

#[cold]
#[inline(never)]
fn grow<A: Array>(items: &mut SmallVec<A>) {
    items.reserve(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_in_the_order_in_which_they_were_added() {
        let mut items = SmallVec::<[String; 2]>::new();
        (0..9).for_each(|n| push_in_place(&mut items, || n.to_string()));
        assert_eq!(items.concat(), "012345678");
    }

    #[test]
    fn an_item_that_is_not_made_is_not_added() {
        let mut items = SmallVec::<[String; 1]>::from_iter(["a".to_owned()]);
        let add = std::panic::AssertUnwindSafe(|| push_in_place(&mut items, || panic!("no item")));
        assert!(std::panic::catch_unwind(add).is_err());
        assert_eq!(items.as_slice(), ["a"]);
    }
}
