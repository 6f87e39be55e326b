//! A drawing as SVG text: deterministic, with one decimal, readable on light and dark pages.

use std::fmt::Write;

#[derive(Clone, Copy)]
pub enum Color {
    Allowed,
    Denied,
    Held,
    First,
    Second,
    Third,
    Fourth,
    Fifth,
}

impl Color {
    fn code(self) -> &'static str {
        match self {
            Color::Allowed | Color::Fourth => "#1d6fd1",
            Color::Denied | Color::First => "#d1491d",
            Color::Held | Color::Second => "#1a9a6c",
            Color::Third => "#8a4fc8",
            Color::Fifth => "#7a7a7a",
        }
    }
}

pub struct Svg {
    text: String,
}

impl Svg {
    pub fn new(width: u32, height: u32) -> Svg {
        let mut svg = Svg { text: String::new() };
        svg.element(format_args!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="14">"##
        ));
        svg.element(format_args!(r##"<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>"##));
        svg
    }

    pub fn finish(mut self) -> String {
        self.text += "</svg>\n";
        self.text
    }

    pub fn text(&mut self, x: f64, y: f64, text: &str) {
        self.element(format_args!(r##"<text x="{x:.1}" y="{y:.1}" fill="#222222">{text}</text>"##));
    }

    pub fn small(&mut self, x: f64, y: f64, text: &str) {
        self.element(format_args!(
            r##"<text x="{x:.1}" y="{y:.1}" fill="#666666" font-size="12">{text}</text>"##
        ));
    }

    pub fn horizontal(&mut self, from: f64, to: f64, y: f64) {
        self.element(format_args!(
            r##"<line x1="{from:.1}" y1="{y:.1}" x2="{to:.1}" y2="{y:.1}" stroke="#dddddd"/>"##
        ));
    }

    pub fn vertical(&mut self, x: f64, from: f64, to: f64) {
        self.element(format_args!(
            r##"<line x1="{x:.1}" y1="{from:.1}" x2="{x:.1}" y2="{to:.1}" stroke="#bbbbbb" stroke-dasharray="3 3"/>"##
        ));
    }

    /// From the arrival of a request to its release.
    pub fn link(&mut self, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.element(format_args!(
            r##"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="#1a9a6c" stroke-opacity="0.45"/>"##
        ));
    }

    /// A denied request is hollow, so that color is not the only difference.
    pub fn dot(&mut self, x: f64, y: f64, color: Color) {
        let code = color.code();
        let fill = if matches!(color, Color::Denied) { "none" } else { code };
        self.element(format_args!(
            r##"<circle cx="{x:.1}" cy="{y:.1}" r="2.8" fill="{fill}" stroke="{code}" stroke-width="1.3"/>"##
        ));
    }

    pub fn line(&mut self, points: &[(f64, f64)], color: Color) {
        let mut list = String::new();
        for (x, y) in points {
            write!(list, "{x:.1},{y:.1} ").expect("writing to a string cannot fail");
        }
        let code = color.code();
        self.element(format_args!(
            r##"<polyline points="{}" fill="none" stroke="{code}" stroke-width="2"/>"##,
            list.trim_end()
        ));
    }

    /// A bar that stands on `y`.
    pub fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, color: Color) {
        let code = color.code();
        self.element(format_args!(
            r##"<rect x="{x:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}" fill="{code}"/>"##,
            y - height
        ));
    }

    pub fn legend(&mut self, x: f64, y: f64, entries: &[(&str, Color)]) {
        let mut at = x;
        for (name, color) in entries {
            self.dot(at, y, *color);
            self.small(at + 8.0, y + 4.0, name);
            at += 30.0 + 6.6 * name.len() as f64;
        }
    }

    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{element}").expect("writing to a string cannot fail");
    }
}
