//! The panic switch: whether an engine enforces anything at all.

use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Enforce {
    /// Rules and bans are enforced.
    #[default]
    On,
    /// Everything is checked, counted and reported as under `mode: shadow`; no request is denied or delayed.
    Shadow,
    /// Nothing is checked or counted; every request is admitted.
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

/// The position of the switch. Requests in flight may still see the previous one.
#[derive(Default)]
pub(crate) struct PanicSwitch(AtomicU8);

impl PanicSwitch {
    #[inline]
    pub(crate) fn get(&self) -> Enforce {
        let position = self.0.load(Ordering::Relaxed);
        if position == Enforce::On as u8 { Enforce::On } else { Self::switched(position) }
    }

    #[cold]
    fn switched(position: u8) -> Enforce {
        if position == Enforce::Shadow as u8 { Enforce::Shadow } else { Enforce::Off }
    }

    pub(crate) fn set(&self, enforce: Enforce) {
        self.0.store(enforce as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_keeps_its_position_and_its_name_round_trips() {
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
