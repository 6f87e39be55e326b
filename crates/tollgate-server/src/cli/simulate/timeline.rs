//! Requests and denials over the time of a log, in a bounded number of steps, drawn as SVG.

use tollgate::Time;
use tollgate::internal::time::calendar;

use crate::cli::svg::{Color, Svg};

const MAX_STEPS: usize = 240;

/// Steps become twice as long when the log outgrows them.
#[derive(Default)]
pub struct Timeline {
    start_secs: u64,
    step_secs: u64,
    steps: Vec<TimeStep>,
}

#[derive(Clone, Copy, Default)]
struct TimeStep {
    allowed: u64,
    denied: u64,
}

impl Timeline {
    /// Times never go back.
    pub fn add(&mut self, at: Time, is_denied: bool) {
        if self.steps.is_empty() {
            self.start_secs = at.secs();
            self.step_secs = 1;
        }
        while (at.secs() - self.start_secs) / self.step_secs >= MAX_STEPS as u64 {
            self.halve();
        }
        let step = ((at.secs() - self.start_secs) / self.step_secs) as usize;
        if self.steps.len() <= step {
            self.steps.resize(step + 1, TimeStep::default());
        }
        self.steps[step].allowed += u64::from(!is_denied);
        self.steps[step].denied += u64::from(is_denied);
    }

    fn halve(&mut self) {
        let sum = |pair: &[TimeStep]| TimeStep {
            allowed: pair.iter().map(|step| step.allowed).sum(),
            denied: pair.iter().map(|step| step.denied).sum(),
        };
        self.steps = self.steps.chunks(2).map(sum).collect();
        self.step_secs *= 2;
    }

    pub fn draw(&self, title: &str) -> String {
        const LEFT: f64 = 70.0;
        const WIDTH: f64 = 900.0;
        const FLOOR: f64 = 300.0;
        const HEIGHT: f64 = 220.0;
        let mut svg = Svg::new(1000, 350);
        svg.text(16.0, 26.0, &escape(title));
        svg.legend(LEFT, 50.0, &[("allowed", Color::Allowed), ("denied", Color::Denied)]);
        let most = self.steps.iter().map(|step| step.allowed + step.denied).max().unwrap_or(0).max(1);
        let height = |count: u64| count as f64 / most as f64 * HEIGHT;
        svg.horizontal(LEFT, LEFT + WIDTH, FLOOR);
        svg.horizontal(LEFT, LEFT + WIDTH, FLOOR - HEIGHT);
        svg.small(8.0, FLOOR - HEIGHT + 4.0, &most.to_string());
        svg.small(8.0, FLOOR + 4.0, "0");
        let width = WIDTH / self.steps.len().max(1) as f64;
        for (n, step) in self.steps.iter().enumerate() {
            let x = LEFT + n as f64 * width;
            svg.bar(x, FLOOR, width, height(step.allowed), Color::Allowed);
            svg.bar(x, FLOOR - height(step.allowed), width, height(step.denied), Color::Denied);
        }
        let end = self.start_secs + self.steps.len() as u64 * self.step_secs;
        svg.small(LEFT, FLOOR + 20.0, &calendar::rfc3339(Time::from_secs(self.start_secs)));
        svg.small(LEFT + WIDTH - 130.0, FLOOR + 20.0, &calendar::rfc3339(Time::from_secs(end)));
        svg.small(LEFT, FLOOR + 38.0, &format!("requests in steps of {} s", self.step_secs));
        svg.finish()
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_bounded_and_lose_no_request() {
        let mut timeline = Timeline::default();
        for n in 0..100_000 {
            timeline.add(Time::from_secs(1_767_225_600 + n * 7), n % 10 == 0);
        }
        assert!(timeline.steps.len() <= MAX_STEPS);
        assert_eq!(timeline.steps.iter().map(|step| step.denied).sum::<u64>(), 10_000);
        assert_eq!(timeline.steps.iter().map(|step| step.allowed).sum::<u64>(), 90_000);
        let drawn = timeline.draw("<a> & b");
        assert!(drawn.contains("&lt;a&gt; &amp; b") && drawn.ends_with("</svg>\n"));
        assert!(Timeline::default().draw("empty").contains("<svg"));
    }
}
