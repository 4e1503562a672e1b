//! Link options of the shared library.

fn main() {
    for option in [
        // The kernel may still hold the address of a restartable section's descriptor: never unload.
        "-Wl,-z,nodelete",
        "-Wl,-z,now",
        "-Wl,-soname,libebbtide.so",
    ] {
        println!("cargo:rustc-cdylib-link-arg={option}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
