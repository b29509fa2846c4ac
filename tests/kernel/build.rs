//! Compiles the CUDA kernels' source for this machine's CPU.

fn main() {
    let source = "../../loader/decode/src/cuda/pixels.cu";
    println!("cargo::rerun-if-changed={source}");
    cc::Build::new()
        .cpp(true)
        .file(source)
        // A compiler for CPUs does not know the suffix.
        .flag("-xc++")
        .std("c++17")
        // Only CUDA's compiler unrolls loops.
        .flag("-Wno-unknown-pragmas")
        .cpp_link_stdlib(None)
        .compile("forebay_kernel");
}
