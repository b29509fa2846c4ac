//! Compiles the kernels' own source for this machine's CPU.

fn main() {
    let source = "../../loader/decode/src/cuda/pixels.cu";
    println!("cargo::rerun-if-changed={source}");
    cc::Build::new()
        .cpp(true)
        .file(source)
        // The suffix says nothing to a compiler for CPUs.
        .flag("-xc++")
        .std("c++17")
        // Loops are unrolled by the other compiler alone.
        .flag("-Wno-unknown-pragmas")
        .cpp_link_stdlib(None)
        .compile("forebay_kernel");
}
