//! Follows the configuration file: a change is taken up within a second, however it was made.
//!
//! The file is looked at, not subscribed to: that works for files edited in place, renamed over and
//! swapped by symlink alike. A change counts once two looks in a row agree, so a file half-written is
//! never taken for a whole one. What is wrong is said, and the rules in force stay.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use tollgate::document::Problems;

use crate::assemble;
use crate::config::{Config, Listen};
use crate::connection::{Shutdown, told_to_stop};
use crate::gate::Gate;

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A file touched so recently may change again within the resolution of its time stamp.
const YOUNG: Duration = Duration::from_secs(2);

pub struct Watched {
    pub path: PathBuf,
    /// Settings that only a start can change, as they are.
    pub fixed: Fixed,
}

/// What a reload does not change.
#[derive(Clone, PartialEq, Eq)]
pub struct Fixed {
    pub listen: Listen,
    pub memory_bytes: usize,
    pub state_dir: PathBuf,
    pub tokens_file: Option<PathBuf>,
}

impl Fixed {
    pub fn of(config: &Config) -> Fixed {
        Fixed {
            listen: config.listen,
            memory_bytes: config.memory_bytes,
            state_dir: config.state_dir.clone(),
            tokens_file: config.tokens_file.clone(),
        }
    }
}

/// What a look at the file saw.
#[derive(Clone, PartialEq, Eq)]
struct Sight {
    device: u64,
    inode: u64,
    length: u64,
    modified: Option<SystemTime>,
    /// The contents, where the time stamp alone does not tell.
    contents: Option<Vec<u8>>,
}

impl Sight {
    fn of(path: &Path) -> Option<Sight> {
        let seen = fs::metadata(path).ok()?;
        let modified = seen.modified().ok();
        let young =
            modified.is_none_or(|at| at.elapsed().is_ok_and(|age| age < YOUNG) || at > SystemTime::now());
        let contents = if young { fs::read(path).ok() } else { None };
        Some(Sight { device: seen.dev(), inode: seen.ino(), length: seen.len(), modified, contents })
    }

    /// Whether nothing has changed since `earlier`, whose file may have been young then.
    fn same_as(&self, earlier: &Sight) -> bool {
        let stamps = (self.device, self.inode, self.length, self.modified);
        let same_stamps = stamps == (earlier.device, earlier.inode, earlier.length, earlier.modified);
        same_stamps
            && (self.contents.is_none() || earlier.contents.is_none() || self.contents == earlier.contents)
    }
}

/// Runs until the shutdown; a SIGHUP reads the file at once.
pub async fn watch(gate: Arc<Gate>, watched: Watched, mut shutdown: Shutdown) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        tracing::error!("SIGHUP cannot be listened to");
        return;
    };
    let mut in_force = Sight::of(&watched.path);
    let mut changing: Option<Sight> = None;
    loop {
        tokio::select! {
            () = told_to_stop(&mut shutdown) => return,
            _ = hangup.recv() => {
                in_force = Sight::of(&watched.path);
                apply(&gate, &watched);
            }
            _ = ticks.tick() => {
                gate.clock.reanchor();
                let Some(seen) = Sight::of(&watched.path) else { continue }; // gone for a moment
                if in_force.as_ref().is_some_and(|known| seen.same_as(known)) {
                    in_force = Some(seen);
                    changing = None;
                } else if changing.as_ref().is_some_and(|before| seen.same_as(before)) {
                    in_force = Some(seen);
                    changing = None;
                    apply(&gate, &watched);
                } else {
                    changing = Some(seen);
                }
            }
        }
    }
}

fn apply(gate: &Gate, watched: &Watched) {
    match try_apply(gate, watched) {
        Ok(Some((old, new))) => {
            gate.reloads.applied.fetch_add(1, Ordering::Relaxed);
            tracing::info!("rules generation {old} → {new}");
        }
        Ok(None) => tracing::info!("the configuration has not changed"),
        Err(problems) => {
            gate.reloads.rejected.fetch_add(1, Ordering::Relaxed);
            for problem in &problems {
                tracing::error!("{problem}");
            }
            tracing::error!("the configuration was not taken: the rules in force stay");
        }
    }
}

fn try_apply(gate: &Gate, watched: &Watched) -> Result<Option<(u64, u64)>, Problems> {
    let (mut config, text) = Config::load(&watched.path)?;
    if gate.live.load().text == text && config.jwt_keys_file.is_none() {
        return Ok(None);
    }
    if Fixed::of(&config) != watched.fixed {
        tracing::warn!("listen, memory, state_dir and tokens_file are changed by a restart only");
    }
    let policy =
        config.take_policy().map_err(|problems| problems.in_file(&watched.path.display().to_string()))?;
    let live = assemble::live(&config, &policy, text)?;
    let generations = gate.engine.apply(policy, gate.now());
    gate.live.store(Arc::new(live));
    Ok(Some(generations))
}
