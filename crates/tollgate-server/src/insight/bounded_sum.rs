//! Counts of a key from several sources, each of which lists only some keys: sketches of successive steps, or nodes.
//!
//! A source states what a key that it does not list may have at most, its `unlisted`. That is added to the key's count and
//! error, so the true sum stays within [count − error, count].

#[derive(Clone, Copy, Default)]
pub struct BoundedSum {
    count: u64,
    error: u64,
    /// `unlisted` of the sources that list the key.
    covered: u64,
}

impl BoundedSum {
    /// Adds what a source lists, which would otherwise have added `unlisted`.
    pub fn add(&mut self, count: u64, error: u64, unlisted: u64) {
        self.count = self.count.saturating_add(count);
        self.error = self.error.saturating_add(error);
        self.covered = self.covered.saturating_add(unlisted);
    }

    /// Count and error, given the sum of `unlisted` of all sources.
    pub fn bounds(self, unlisted: u64) -> (u64, u64) {
        let elsewhere = unlisted.saturating_sub(self.covered);
        (self.count.saturating_add(elsewhere), self.error.saturating_add(elsewhere))
    }
}
