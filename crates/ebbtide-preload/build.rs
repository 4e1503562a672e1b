//! Link options of the shared library.

fn main() {
    for option in [
        // The kernel may still hold the address of a restartable section's descriptor: never unload.
        "-Wl,-z,nodelete",
        "-Wl,-z,now",
        "-Wl,-soname,libebbtide.so.0",
        // Unwind tables of a precompiled `core` refer to it, where that is not optimised together with the rest: none.
        // Nothing of ours unwinds; who unwinds through it finds nothing to do here.
        "-Wl,--defsym=rust_eh_personality=0",
    ] {
        println!("cargo:rustc-cdylib-link-arg={option}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
