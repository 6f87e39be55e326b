//! Keeps the name of the counted function in the stripped binary `linearity`, where callgrind looks for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bin=linearity=-Wl,--export-dynamic-symbol=linearity_measured");
}
