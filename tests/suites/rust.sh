# what: the tests of Rust's library alloc, with Ebbtide as global allocator
# source: rust nightly
# limit_s: 600
#
# They use features that only a nightly compiler has. A line runs all tests of a module at the same time.

cp -r "$SRC/alloc" "$SRC/alloctests" .
# The control run takes the same programs: to build them takes longest.
mkdir -p chosen/src
cat > chosen/Cargo.toml <<END
[package]
name = "chosen"
edition = "2024"

[dependencies]
ebbtide = { path = "$REPOSITORY/crates/ebbtide" }
END
cat > chosen/src/lib.rs <<'END'
//! Ebbtide, or with `ALLOCATOR=glibc` the C library's malloc.
use ebbtide::Ebbtide;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

pub struct Chosen;

unsafe extern "C" {
    safe fn getenv(name: *const c_char) -> *const c_char;
}

fn is_glibc() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    if KNOWN.load(Relaxed) == 0 {
        let value = getenv(c"ALLOCATOR".as_ptr());
        let is_glibc = !value.is_null() && unsafe { CStr::from_ptr(value) } == c"glibc";
        KNOWN.store(1 + u8::from(is_glibc), Relaxed);
    }
    KNOWN.load(Relaxed) == 2
}

unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        unsafe { if is_glibc() { System.alloc(layout) } else { Ebbtide.alloc(layout) } }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { if is_glibc() { System.dealloc(at, layout) } else { Ebbtide.dealloc(at, layout) } }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        unsafe { if is_glibc() { System.alloc_zeroed(layout) } else { Ebbtide.alloc_zeroed(layout) } }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        unsafe { if is_glibc() { System.realloc(at, layout, size) } else { Ebbtide.realloc(at, layout, size) } }
    }
}
END

cd alloctests
# Benchmarks are no tests.
sed -i '/^\[\[bench\]\]/,/^$/d' Cargo.toml
cat >> Cargo.toml <<END

[dependencies]
chosen = { path = "../chosen" }

[workspace]

[profile.dev]
opt-level = 1
debug = 0
incremental = false
END
for file in lib.rs tests/lib.rs tests/vec_deque_alloc_error.rs; do
    printf '\n#[global_allocator]\nstatic ALLOCATOR: chosen::Chosen = chosen::Chosen;\n' >> "$file"
done
cargo +nightly test --no-run --message-format=json > messages
cd ..
grep '"executable":"' alloctests/messages | while read -r message; do
    name=$(basename "$(grep -oP '"src_path":"\K[^"]+' <<< "$message")" .rs)
    # The library's file has the name of one of the others.
    ! grep -qF '"target":{"kind":["lib"]' <<< "$message" || name=unit
    cp "$(grep -oP '"executable":"\K[^"]+' <<< "$message")" "$name"
    # Without the tests that are marked as ignored.
    comm -23 <("./$name" --list --format terse | sort) <("./$name" --list --format terse --ignored | sort) |
        sed -n 's/: test$//p' |
        awk -v program="$name" '{
            module = $0
            if (!sub(/::[^:]*$/, "", module)) module = "root"
            sub(/::tests$/, "", module)
            tests[module] = tests[module] " " $0
            count[module]++
        } END {
            for (module in tests)
                printf "linked %s %s, %d tests: env ALLOCATOR={allocator} ./%s --exact%s\n", program, module, count[module], program, tests[module]
        }' | sort
done
