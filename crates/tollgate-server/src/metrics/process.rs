//! Metrics of the process, by the names that Prometheus client libraries use. Those that the system does not tell are
//! left out.

use std::fmt;
use std::fs;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::writer::MetricsWriter;

impl MetricsWriter<'_> {
    pub(super) fn process(&mut self) -> fmt::Result {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        self.counter_seconds(
            "process_cpu_seconds_total",
            "User and system CPU time of the process.",
            cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        )?;
        if let Some(stat) = ProcessStat::read() {
            self.gauge("process_resident_memory_bytes", "Resident memory.", stat.resident_bytes)?;
            self.gauge("process_virtual_memory_bytes", "Virtual memory.", stat.virtual_bytes)?;
            if let Some(booted) = boot_time_secs() {
                let started = booted as f64 + stat.started_after_boot_secs;
                self.gauge_seconds(
                    "process_start_time_seconds",
                    "When the process started, in seconds since 1970.",
                    started,
                )?;
            }
        }
        if let Some(open) = open_descriptors() {
            self.gauge("process_open_fds", "Open file descriptors.", open)?;
        }
        // Without a limit there is nothing to compare with.
        getrlimit(Resource::Nofile).current.map_or(Ok(()), |limit| {
            self.gauge("process_max_fds", "The limit of open file descriptors.", limit)
        })
    }
}

struct ProcessStat {
    virtual_bytes: u64,
    resident_bytes: u64,
    started_after_boot_secs: f64,
}

impl ProcessStat {
    fn read() -> Option<ProcessStat> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let page_bytes = rustix::param::page_size() as u64;
        ProcessStat::parse(&stat, page_bytes, rustix::param::clock_ticks_per_second())
    }

    /// The fields of proc_pid_stat(5). The name of the program may contain spaces and brackets.
    fn parse(stat: &str, page_bytes: u64, ticks_per_second: u64) -> Option<ProcessStat> {
        const FIRST_AFTER_NAME: usize = 3;
        let (_, after_name) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - FIRST_AFTER_NAME)?.parse::<u64>().ok();
        let started_ticks = field(22)?;
        Some(ProcessStat {
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * page_bytes,
            started_after_boot_secs: started_ticks as f64 / ticks_per_second as f64,
        })
    }
}

fn boot_time_secs() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Without the one that reads the folder.
fn open_descriptors() -> Option<u64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(open.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 11 12 0 0 20 0 3 0 250 4096000 50 18446744073709551615 1";
        let parsed = ProcessStat::parse(stat, 4096, 100).expect("valid");
        assert_eq!(parsed.virtual_bytes, 4_096_000);
        assert_eq!(parsed.resident_bytes, 50 * 4096);
        assert_eq!(parsed.started_after_boot_secs, 2.5);
        assert!(ProcessStat::parse("7 (a) S 1", 4096, 100).is_none());
        assert!(ProcessStat::parse("", 4096, 100).is_none());
    }
}
