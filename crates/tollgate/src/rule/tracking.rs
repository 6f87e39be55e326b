//! Tracking settings of a rule: `track: true` or `track: {times: 16, keep: 30d}`.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::document::MapReader;
use crate::rule::parse::read_duration;

/// The number of latest timestamps, and how long a key is kept after its last hit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tracking {
    keep_secs: NonZeroU32,
    times: u16,
}

impl Tracking {
    pub const MAX_TIMES: u16 = 256;
    pub const MAX_KEEP: Duration = Duration::from_secs(365 * 86_400);
    const DEFAULT_TIMES: u16 = 16;
    const DEFAULT_KEEP: Duration = Duration::from_secs(30 * 86_400);

    /// `None` if a value is out of range: 1 to 256 times, kept for 1 s to 365 d in whole seconds.
    pub fn new(times: u64, keep: Duration) -> Option<Tracking> {
        let times = u16::try_from(times).ok().filter(|times| (1..=Self::MAX_TIMES).contains(times))?;
        if keep > Self::MAX_KEEP || keep.subsec_nanos() > 0 {
            return None;
        }
        let keep_secs = NonZeroU32::new(u32::try_from(keep.as_secs()).ok()?)?;
        Some(Tracking { keep_secs, times })
    }

    pub fn times(self) -> usize {
        usize::from(self.times)
    }

    pub fn keep(self) -> Duration {
        Duration::from_secs(self.keep_secs.get().into())
    }

    /// Reads `track`: a boolean, or a map with both settings optional.
    pub(super) fn read(map: &mut MapReader<'_, '_>) -> Option<Tracking> {
        let node = map.optional("track")?;
        if let Some(is_tracked) = node.as_bool() {
            return is_tracked.then(Tracking::default);
        }
        if node.as_map().is_none() {
            let shown = node.as_str().map_or_else(|| node.kind().to_owned(), |text| format!("'{text}'"));
            let message =
                format!("expected true, false or a map such as {{times: 16, keep: 30d}}, found {shown}");
            map.reject("track", node, message);
            return None;
        }
        let mut map = map.optional_map("track")?;
        let times = map.optional("times").map_or(Some(u64::from(Self::DEFAULT_TIMES)), |node| {
            let times = node.as_u64().filter(|times| (1..=u64::from(Self::MAX_TIMES)).contains(times));
            if times.is_none() {
                let message = format!("expected a whole number from 1 to {}", Self::MAX_TIMES);
                map.reject("times", node, message);
            }
            times
        });
        let keep = match map.optional("keep") {
            None => Some(Self::DEFAULT_KEEP),
            Some(node) => read_duration(&mut map, "keep").filter(|keep| {
                let fits = Tracking::new(1, *keep).is_some();
                if !fits {
                    map.reject("keep", node, "expected whole seconds, from 1s to 365d");
                }
                fits
            }),
        };
        map.finish();
        Tracking::new(times?, keep?)
    }
}

impl Default for Tracking {
    fn default() -> Tracking {
        Tracking::new(Self::DEFAULT_TIMES.into(), Self::DEFAULT_KEEP).expect("the defaults are in range")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_bounds_and_take_a_word() {
        let day = Duration::from_secs(86_400);
        let default = Tracking::default();
        assert_eq!((default.times(), default.keep()), (16, 30 * day));
        assert!(Tracking::new(256, 365 * day).is_some());
        for (times, keep) in
            [(0, day), (257, day), (16, 366 * day), (16, Duration::ZERO), (16, Duration::from_millis(1500))]
        {
            assert_eq!(Tracking::new(times, keep), None, "{times} {keep:?}");
        }
        assert_eq!(size_of::<Option<Tracking>>(), 8, "a million rules have one");
    }
}
