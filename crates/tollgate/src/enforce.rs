//! The panic switch: whether an engine refuses anybody at all.

use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Enforce {
    /// Rules and bans mean what they say.
    #[default]
    On,
    /// Everything is looked up, counted and reported as under `mode: shadow`; nobody is refused or delayed.
    Shadow,
    /// Nothing is looked up or counted; everything passes.
    Off,
}

impl Enforce {
    pub const ALL: [Enforce; 3] = [Enforce::On, Enforce::Shadow, Enforce::Off];

    pub const fn name(self) -> &'static str {
        match self {
            Enforce::On => "on",
            Enforce::Shadow => "shadow",
            Enforce::Off => "off",
        }
    }

    pub fn parse(name: &str) -> Option<Enforce> {
        Enforce::ALL.into_iter().find(|enforce| enforce.name() == name)
    }
}

/// Where the switch stands. Requests that are being decided may still see where it stood before.
#[derive(Default)]
pub(crate) struct PanicSwitch(AtomicU8);

impl PanicSwitch {
    #[inline]
    pub(crate) fn get(&self) -> Enforce {
        match self.0.load(Ordering::Relaxed) {
            0 => Enforce::On,
            1 => Enforce::Shadow,
            _ => Enforce::Off,
        }
    }

    pub(crate) fn set(&self, enforce: Enforce) {
        self.0.store(enforce as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_stands_where_it_was_set_and_is_read_as_it_is_written() {
        let switch = PanicSwitch::default();
        assert_eq!(switch.get(), Enforce::On);
        for enforce in Enforce::ALL {
            switch.set(enforce);
            assert_eq!(switch.get(), enforce);
            assert_eq!(Enforce::parse(enforce.name()), Some(enforce));
        }
        assert_eq!(Enforce::parse("ON"), None);
    }
}
