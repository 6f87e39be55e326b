//! Requests and denials over the time of a log, in a bounded number of steps, drawn as SVG or PNG.

use serde::{Deserialize, Serialize};
use tollgate::Time;
use tollgate::internal::time::calendar;

use crate::cli::png::Raster;
use crate::cli::svg::{Color, Svg};

const MAX_STEPS: usize = 240;

/// Steps become twice as long when the log outgrows them.
#[derive(Default, Serialize, Deserialize)]
pub struct Timeline {
    start_secs: u64,
    step_secs: u64,
    steps: Vec<TimeStep>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
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

    /// The drawing as SVG.
    pub fn svg(&self, title: &str) -> String {
        let mut svg = Svg::new(WIDTH, HEIGHT);
        self.draw(&mut svg, title);
        svg.finish()
    }

    /// The drawing as PNG.
    pub fn png(&self, title: &str) -> Vec<u8> {
        let mut raster = Raster::new(WIDTH, HEIGHT);
        self.draw(&mut raster, title);
        raster.finish()
    }

    fn draw(&self, canvas: &mut impl Canvas, title: &str) {
        const LEFT: f64 = 70.0;
        const PLOT_WIDTH: f64 = 900.0;
        const FLOOR: f64 = 300.0;
        const PLOT_HEIGHT: f64 = 220.0;
        canvas.text(16.0, 26.0, title);
        canvas.legend(LEFT, 50.0, &[("allowed", Color::Allowed), ("denied", Color::Denied)]);
        let most = self.steps.iter().map(|step| step.allowed + step.denied).max().unwrap_or(0).max(1);
        let height = |count: u64| count as f64 / most as f64 * PLOT_HEIGHT;
        canvas.horizontal(LEFT, LEFT + PLOT_WIDTH, FLOOR);
        canvas.horizontal(LEFT, LEFT + PLOT_WIDTH, FLOOR - PLOT_HEIGHT);
        canvas.small(8.0, FLOOR - PLOT_HEIGHT + 4.0, &most.to_string());
        canvas.small(8.0, FLOOR + 4.0, "0");
        let width = PLOT_WIDTH / self.steps.len().max(1) as f64;
        for (n, step) in self.steps.iter().enumerate() {
            let x = LEFT + n as f64 * width;
            canvas.bar(x, FLOOR, width, height(step.allowed), Color::Allowed);
            canvas.bar(x, FLOOR - height(step.allowed), width, height(step.denied), Color::Denied);
        }
        let end = self.start_secs + self.steps.len() as u64 * self.step_secs;
        canvas.small(LEFT, FLOOR + 20.0, &calendar::rfc3339(Time::from_secs(self.start_secs)));
        canvas.small(LEFT + PLOT_WIDTH - 130.0, FLOOR + 20.0, &calendar::rfc3339(Time::from_secs(end)));
        canvas.small(LEFT, FLOOR + 38.0, &format!("requests in steps of {} s", self.step_secs));
    }
}

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 350;

/// What a drawing consists of. Texts are plain.
trait Canvas {
    fn text(&mut self, x: f64, y: f64, text: &str);
    fn small(&mut self, x: f64, y: f64, text: &str);
    fn horizontal(&mut self, from: f64, to: f64, y: f64);
    fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, color: Color);
    fn legend(&mut self, x: f64, y: f64, entries: &[(&str, Color)]);
}

impl Canvas for Svg {
    fn text(&mut self, x: f64, y: f64, text: &str) {
        Svg::text(self, x, y, &escape(text));
    }

    fn small(&mut self, x: f64, y: f64, text: &str) {
        Svg::small(self, x, y, &escape(text));
    }

    fn horizontal(&mut self, from: f64, to: f64, y: f64) {
        Svg::horizontal(self, from, to, y);
    }

    fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, color: Color) {
        Svg::bar(self, x, y, width, height, color);
    }

    fn legend(&mut self, x: f64, y: f64, entries: &[(&str, Color)]) {
        Svg::legend(self, x, y, entries);
    }
}

impl Canvas for Raster {
    fn text(&mut self, x: f64, y: f64, text: &str) {
        Raster::text(self, x, y, text);
    }

    fn small(&mut self, x: f64, y: f64, text: &str) {
        Raster::small(self, x, y, text);
    }

    fn horizontal(&mut self, from: f64, to: f64, y: f64) {
        Raster::horizontal(self, from, to, y);
    }

    fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, color: Color) {
        Raster::bar(self, x, y, width, height, color);
    }

    fn legend(&mut self, x: f64, y: f64, entries: &[(&str, Color)]) {
        let mut at = x;
        for (name, color) in entries {
            Raster::bar(self, at - 4.0, y + 4.0, 8.0, 8.0, *color);
            Raster::small(self, at + 8.0, y + 4.0, name);
            at += 30.0 + 6.6 * name.len() as f64;
        }
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
        let drawn = timeline.svg("<a> & b");
        assert!(drawn.contains("&lt;a&gt; &amp; b") && drawn.ends_with("</svg>\n"));
        assert!(Timeline::default().svg("empty").contains("<svg"));
    }
}
